"""Check that the Makefile and pages are short, without what `make readme` writes and code.

.venv/bin/python .ci/check_pages.py
"""

import re
import sys
from pathlib import Path

MOST_LINES_OF_MAKEFILE = 200
MOST_WORDS = {"README.md": 850, "docs/METHOD.md": 2_000, "docs/JUDGE.md": 700}
MOST_WORDS_OF_A_PAGE = 2_500
MOST_FINDINGS = 16
MOST_WORDS_OF_A_FINDING = 200
MOST_WORDS_OF_A_PARAGRAPH = 80  # also of an item of a list


def written_by_hand(page):
    """Return the text of a page without comments and without what is between two of them."""
    parts = re.split(r"<!-- [\w-]+ -->", Path(page).read_text())[::2]
    return re.sub(r"(?s)<!--.*?-->", "", " ".join(parts))


def check(text, most, name):
    """Return a list of a line if a text has too many words."""
    words = len(text.split())
    return [f"{name}: {words} words; {most} at most"] if words > most else []


def problems_of(page):
    """Return a line on each problem of a page."""
    text = written_by_hand(page)
    problems = check(text, MOST_WORDS.get(page, MOST_WORDS_OF_A_PAGE), page)

    prose = re.sub(r"(?ms)^```.*?^```|^[|<][^\n]*", "", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*]|\d+\.)", prose):
        problems += check(paragraph, MOST_WORDS_OF_A_PARAGRAPH, f"{page}: {paragraph.strip()[:60]}")

    if page == "docs/FINDINGS.md":
        contents, *findings = text.split("\n### ")
        if not 0 < len(findings) <= MOST_FINDINGS:
            problems.append(f"{page}: {len(findings)} findings; {MOST_FINDINGS} at most")
        for finding in findings:
            title = finding.splitlines()[0]
            problems += check(finding, MOST_WORDS_OF_A_FINDING, f"{page}: {title}")
            if f"[{title}](#" not in contents or "```sh" not in finding:
                problems.append(f"{page}: {title}: needs a line of the contents, and a command")
    return problems


def main(*pages):
    problems = []
    for page in pages:
        if Path(page).exists():
            problems += problems_of(page)

    if len(Path("Makefile").read_text().splitlines()) > MOST_LINES_OF_MAKEFILE:
        problems.append(f"Makefile: {MOST_LINES_OF_MAKEFILE} lines at most")
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])

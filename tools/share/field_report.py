"""Print device, driver, versions and the table as Markdown, to paste into an issue."""

import sys

from tools.share.private_names import replacements, scrub
from tools.share.submission import versions_of
from Utils.analysis import result_tables
from Utils.analysis.summary import summarize
from Utils.base.command_line import SELECTION, Parser
from Utils.base.errors import run_command
from Utils.base.text import plain
from Utils.results import study


def main(*words):
    args = Parser("field-report", __doc__, *SELECTION).parse_args(words)
    summary = summarize(study.study_of_command(args))
    rows = summary.study.rows
    newest = summary.study.records.get(rows.run_id.max(), {})

    # Each figure is missing in some file.
    device = newest.get("device") or {}
    timed = rows[rows.status == "ok"].drop_duplicates("run_id")
    facts = {
        "device": rows.device.iloc[0],
        "memory": f"{device['memory_mib']:,} MiB" if device.get("memory_mib") else "",
        "versions": versions_of(newest) or f"torch {rows.torch.iloc[0]}",
        "platform": newest.get("platform"),
        "runs": f"{len(timed)} with timings, {sum(timed.grade == 'tainted')} disturbed",
    }

    lines = [plain(f"- {name}: {value}") for name, value in facts.items() if value]
    table = result_tables.table(summary, in_file=True)
    print(scrub("\n".join([*lines, "", table]), replacements()))
    print("next: paste this into an issue", file=sys.stderr)


if __name__ == "__main__":
    run_command("field-report", main)

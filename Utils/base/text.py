"""Numbers and texts of a results file, formatted for tables, charts and pages."""

import math
import re
import shutil
import textwrap

WIDEST = 100  # columns
LONGEST = 400  # letters of a note
LARGEST = 1e12  # larger numbers are not measurements, and would fill a line with digits
# Home folders: their names identify a person.
HOMES = re.compile(r"""(?:/home|/Users|[A-Za-z]:\\Users)[/\\][^\s/\\`"'<>&,;:)\]]+|/root(?=/|\b)""")


# Starts of links, images and tags in Markdown, except for the replacements of names.
MARKUP = re.compile(r"\[(?=[^\]]*\]\s?[(\[:])|<(?=[A-Za-z/!?])(?!(home|user|host)>)")


def printable(text):
    """Return a text on one line, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def plain(text):
    """Return a text from a file or a name, harmless on a terminal and in Markdown, on one line."""
    return MARKUP.sub(lambda start: f"&#{ord(start[0])};", printable(text))


def number(value, form=",.1f"):
    """Return a finite number as text, otherwise ""."""
    if not math.isfinite(value):
        return ""
    return format(value, form if abs(value) < LARGEST else ".3g")


def short(text):
    """Return a text cut to LONGEST letters: a note can hold a compiler's whole output."""
    text = "" if text is None or text != text else str(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def hanging(start, text):
    """Return a text after `start`, wrapped to the terminal and indented by its length."""
    columns = max(60, min(WIDEST, shutil.get_terminal_size((WIDEST, 0)).columns))
    lines = textwrap.wrap(
        text,
        columns - len(start),
        break_long_words=False,  # such as paths
        break_on_hyphens=False,  # such as flags
    )
    return start + f"\n{' ' * len(start)}".join(lines)


def plural(count, noun):
    """Return "1 round" or "3 rounds"."""
    return f"{count} {noun}{'s' * (count != 1)}"

"""Lines that enable techniques in a training loop, by library: lines.toml, or a script's diff."""

from Utils.base import files
from Utils.scripts import diffs
from Utils.scripts.ladder import Ladder

SWITCHES = files.tables_beside(__file__, "lines.toml")
LIBRARIES = (  # title; the call whose arguments are set; their key in SWITCHES, that of more lines
    ("PyTorch", None, None, "pytorch"),
    ("Hugging Face Trainer", "TrainingArguments", "arguments", "hugging"),
    ("Lightning", "Trainer", "trainer", "lightning"),
)


def lines_by_library(
    techniques: list[str], ladder: Ladder, batch: str = "..."
) -> dict[str, list[str]]:
    """Return the lines to copy by library, with `batch` for {batch}; a diff if not in SWITCHES."""
    by_library = {}
    for library, call, arguments, lines in LIBRARIES:
        entries = {name: SWITCHES.get(name, {}) for name in techniques}
        has = [name for name, entry in entries.items() if {arguments, lines} & entry.keys()]

        # A technique that the library has a switch for may replace the lines of others.
        titles = {name: f"# {name}" for name in techniques}
        for name in has:
            for replaced in SWITCHES[name].get("replaces", ()):
                titles[name] += f", in place of {replaced}"
                entries.pop(replaced, None)

        inside = [f"    {e[arguments]},  {titles[n]}" for n, e in entries.items() if arguments in e]
        text = [f"{call}(", *inside, ")"] if inside else []
        for name, entry in entries.items():
            if lines in entry:
                text += [titles[name], *entry[lines].strip().splitlines()]
            elif library == "PyTorch":
                script = ladder.get(name)
                diff = diffs.diff(script, ladder.get(script.parent))
                text += [f"# {name}, which is"] + [f"#   {line}" for line in diff[2:]]
            elif name not in has:
                text.append(f"# {name}: no switch; in the model's or the loop's own code")
        text = text or ["# nothing to change"]
        by_library[library] = [line.replace("{batch}", batch) for line in text]
    return by_library

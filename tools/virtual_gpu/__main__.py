"""Run the CUDA path on a machine without a GPU: `make virtual-gpu`.

    .venv/bin/python -m tools.virtual_gpu [TORCH=2.11 | TORCH=newest] [--only WORDS]

It builds an environment with torch's CUDA build and the virtual GPU, runs the checks on it, prints
a table and, with the project's torch, writes docs/virtual_gpu.csv.
"""

import csv
import io
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tools.virtual_gpu import checks, peaks
from tools.virtual_gpu.build import environment, libraries
from tools.virtual_gpu.processes import Machine
from Utils.base import files
from Utils.base.command_line import Parser
from Utils.base.errors import run_command
from Utils.base.paths import ROOT
from Utils.base.text import plural
from Utils.scripts import ladder


def main(*words):
    """Run the checks. Return the exit code: 0, or 1 if a check has a problem."""
    parser = Parser("virtual-gpu", __doc__, "torch")
    help = "checks whose name has these words; the file stays as it is"
    parser.add_argument("--only", default="", help=help)
    args = parser.parse_args(words)
    python = environment(args.torch.strip())
    machine = Machine(python, libraries(python))

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        lines = run(machine, workers, args.only)

    problems = sum(len(line.problems) for line in lines)
    print(f"\n{len(lines)} checks, {plural(problems, 'problem')}")
    if not args.torch and not args.only:
        write(lines)
    return 1 if problems else 0


def run(machine, workers, only):
    """Return the Lines of the checks whose names contain `only`, and print each as it ends."""
    # The doctor on each card, whose statuses the techniques are compared with
    cards = ("h100", *checks.OTHER_CARDS)
    doctors = dict(zip(cards, workers.map(partial(checks.doctor, machine), cards), strict=True))
    lines = [show(line) for line, _ in doctors.values()]

    # Techniques: all on an H100, and the ladder on the other cards; then too little memory
    names = list(ladder.techniques())
    runs = [(name, checks.TINY, "h100") for name in names]
    runs += [(name, checks.TINY, card) for card in cards[1:] for name in checks.LADDER]
    runs += [(name, checks.FULL, "h100") for name in names]
    tasks = {"make gpu-check": partial(checks.gpu_check, machine)}  # first, as it is the longest
    for task in runs:
        _, statuses = doctors[task[2]]
        tasks[checks.run_name(*task)] = partial(checks.technique, machine, *task, statuses)
    for case in checks.TOO_LARGE:
        tasks[f"out of memory, {case[0]}"] = partial(checks.out_of_memory, machine, *case)
    chosen = [task for name, task in tasks.items() if only in name]
    lines += map(show, workers.map(lambda task: task(), chosen))

    if not only:
        full = [line for line in lines if line.facts.get("model") == checks.FULL[0]]
        lines.append(show(peaks.forecast(full, *checks.FULL)))
    return lines


def show(line):
    """Print a Line and return it."""
    facts = line.facts
    peak = f"{float(facts['peak_mib']) / 1024:.2f} GiB" if facts.get("peak_mib") else ""
    cells = [
        f"{line.name:52}",
        f"{peak:>10}",
        f"{facts.get('launches', '')!s:>5}",
        f"{facts.get('synchronizations', '')!s:>5}",
        f"{line.seconds:6.0f} s",
        "; ".join(line.problems) or "ok",
    ]
    print("  ".join(cells), flush=True)
    return line


def write(lines):
    """Write docs/virtual_gpu.csv: the counts of each run of a technique.

    Rows of cards and shapes that are not in `lines` stay as they are.
    """
    path = ROOT / "docs" / "virtual_gpu.csv"
    facts = [line.facts for line in lines if line.facts]
    ran = {card_and_shape(row) for row in facts}
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        facts += [row for row in reader if card_and_shape(row) not in ran]

    text = io.StringIO()
    writer = csv.DictWriter(text, reader.fieldnames, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(facts)
    files.write(path, text.getvalue())


def card_and_shape(row):
    """Return card, model and length, which distinguish checks.TINY and FULL."""
    return row["profile"], row["model"], int(row["seq_len"])


if __name__ == "__main__":
    run_command("virtual-gpu", main)

"""Run the CUDA path on a machine without a GPU: `make virtual-gpu`.

    .venv/bin/python -m tools.virtual_gpu [TORCH=2.11 | TORCH=newest] [--only WORDS]

It builds an environment with torch's CUDA build and the virtual GPU, runs the checks on it, prints
a table and, with the project's torch, writes docs/virtual_gpu.csv.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pandas as pd

from tools.virtual_gpu import checks, peaks
from tools.virtual_gpu.build import environment
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

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        lines = run(python, workers, args.only)

    problems = sum(len(line.problems) for line in lines)
    print(f"\n{len(lines)} checks, {plural(problems, 'problem')}")
    if not args.torch and not args.only:
        write(lines)
    return 1 if problems else 0


def run(python, workers, only):
    """Return the Lines of the checks whose names contain `only`, and print each as it ends."""
    # The doctor on each card, whose statuses the techniques are compared with
    cards = ("h100", *checks.OTHER_CARDS)
    doctors = dict(zip(cards, workers.map(partial(checks.doctor, python), cards), strict=True))
    lines = [show(f"doctor, {card}", line) for card, (line, _) in doctors.items()]

    # Techniques: all on an H100, and the ladder on the other cards; then too little memory
    names = list(ladder.techniques())
    runs = [(name, checks.TINY, "h100") for name in names]
    runs += [(name, checks.TINY, card) for card in cards[1:] for name in checks.LADDER]
    runs += [(name, checks.FULL, "h100") for name in names]
    tasks = {"make gpu-check": partial(checks.gpu_check, python)}  # first, as it is the longest
    for name, shape, card in runs:
        _, statuses = doctors[card]
        title = f"{name}, {card}, {shape[0]} {shape[1]}x{shape[2]}"
        tasks[title] = partial(checks.technique, python, name, shape, card, statuses)
    for case in checks.TOO_LARGE:
        tasks[f"out of memory, {case[0]}"] = partial(checks.out_of_memory, python, *case)
    chosen = [name for name in tasks if only in name]
    lines += map(show, chosen, workers.map(lambda name: tasks[name](), chosen))

    if not only:
        full = [line for line in lines if line.facts.get("model") == checks.FULL[0]]
        compared = peaks.forecast(full, *checks.FULL)
        lines.append(show("forecast against the allocator", compared))
    return lines


def show(name, line):
    """Print a Line after its name, and return it."""
    facts = line.facts
    peak = f"{float(facts['peak_mib']) / 1024:.2f} GiB" if facts.get("peak_mib") else ""
    cells = [
        f"{name:52}",
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
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    facts = [line.facts for line in lines if line.facts]
    ran = pd.DataFrame(facts, columns=table.columns, dtype=object).fillna("").astype(str)
    card_and_shape = ["profile", "model", "seq_len"]  # which distinguish checks.TINY and FULL
    is_kept = ~table.set_index(card_and_shape).index.isin(ran.set_index(card_and_shape).index)
    files.write(path, pd.concat([ran, table[is_kept]]).to_csv(index=False))


if __name__ == "__main__":
    run_command("virtual-gpu", main)

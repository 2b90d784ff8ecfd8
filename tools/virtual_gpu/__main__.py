"""The CUDA path, run where there is no GPU. Started by `make virtual-gpu`.

    python -m tools.virtual_gpu [TORCH=2.11 | TORCH=newest] [MEMORY=1] [--only WORDS]

Builds an environment with torch's CUDA build and the virtual GPU, runs the checks on it, prints a
table and, with the project's own torch, writes docs/virtual_gpu.csv. What has not changed since it
was last run is not run again.
"""

import csv
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tools.virtual_gpu import checks
from tools.virtual_gpu.build import BuildFailed, environment, libraries
from tools.virtual_gpu.processes import KEPT, Machine
from Utils.base.command_line import Parser
from Utils.base.paths import ROOT
from Utils.scripts import ladder

COLUMNS = ("technique", "profile", "model", "batch_size", "seq_len", "torch", "status", "peak_mib")
MEMORY = {"3050": "4GiB", "l4": "21.96GiB"}  # of driver/profiles.h
COLUMNS += ("reserved_mib", "forecast_mib", "launches", "synchronizations", "pageable_copies")


def main(argv=None):
    """Runs the checks. Returns the exit code: 0, or 1 where one of them found a problem."""
    parser = Parser("virtual-gpu", __doc__, "torch", "memory")
    help = "checks whose name has these words; the file stays as it is"
    parser.add_argument("--only", default="", help=help)
    args = parser.parse_args(argv)
    try:
        python = environment(args.torch.strip())
        machine = Machine(python, libraries(python))
    except BuildFailed as error:
        print(f"virtual-gpu: error: {error}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        if args.memory:
            lines = memory(machine, workers)
        else:
            lines = run(machine, workers, args.only, everything=not args.torch)
    problems = sum(map(len, (line.problems for line in lines)))
    print(f"\n{len(lines)} checks, {problems} problem{'s' * (problems != 1)}")
    if not args.torch and not args.only:
        write(lines)
    return 1 if problems else 0


def run(machine, workers, only, everything):
    """The lines of all checks, each printed as it is known; of those whose names hold `only`.

    everything: every technique and every failure, else the ladder and the doctor on one card.
    """
    techniques = list(ladder.techniques()) if everything else checks.LADDER
    cards = ("h100", *checks.OTHER_CARDS) if everything else ("h100",)
    lines, told = [], {}
    doctors = workers.map(lambda card: checks.doctor(machine, card), cards)
    for card, (line, statuses) in zip(cards, doctors, strict=True):
        lines.append(show(line))
        told[card] = statuses
    tasks = [(name, checks.TINY, "h100") for name in techniques]
    tasks += [(name, checks.TINY, card) for card in cards[1:] for name in checks.LADDER]
    if everything:
        tasks += [(name, checks.FULL, "h100") for name in techniques]
    tasks = [task for task in tasks if only in task_name(*task)]
    if everything and only in ("", "gpu-check"):  # first, as it is the longest
        gpu_check = workers.submit(checks.gpu_check, machine)
    runs = workers.map(lambda task: checks.technique(machine, *task, told[task[2]]), tasks)
    lines += map(show, runs)
    if not everything:
        return lines
    if not only:
        full = [line for line in lines if line.facts.get("model") == checks.FULL[0]]
        table = forecast_table("80GiB", checks.FULL)
        lines.append(show(checks.forecast(full, checks.FULL[1], table)))
    named = [name for name in techniques if only in f"kernels of {name}"]
    lines += map(show, workers.map(lambda name: checks.kernels(machine, name), named))
    if only in ("", "gpu-check"):
        lines.append(show(gpu_check.result()))
    if only in ("", "switches"):
        lines.append(show(checks.switches(machine)))
    if only in ("", "failures"):
        lines += map(show, checks.failures(machine))
    return lines


def memory(machine, workers):
    """The lines of every technique's peak on the smaller cards, and of their forecasts."""
    lines = []
    for card, shape in checks.SMALLER.items():
        tasks = [(machine, name, card) for name in ladder.techniques()]
        runs = [show(line) for line in workers.map(lambda task: checks.peak(*task), tasks)]
        table = forecast_table(MEMORY[card], shape)
        lines += [*runs, show(checks.forecast(runs, shape[1], table))]
    return lines


def task_name(name, shape, profile):
    return f"{name}, {profile}, {shape[0]} {shape[1]}x{shape[2]}"


def forecast_table(memory, shape):
    """The file with what `make forecast` prints for a card of this memory, in this environment."""
    model, batch_size, seq_len = shape
    shape = [f"MODEL={model}", f"BATCH_SIZE={batch_size}", f"SEQ_LEN={seq_len}"]
    command = ["make", "-s", "forecast", "T=everything", "DEVICE=cuda", f"MEMORY={memory}", *shape]
    file = KEPT / "forecast.txt"
    with file.open("w") as output:
        subprocess.run([*command, f"PYTHON={sys.executable}"], cwd=ROOT, stdout=output, check=True)
    return file


def show(line):
    """Prints a line of the table as soon as it is known."""
    facts = line.facts
    peak = f"{float(facts['peak_mib']) / 1024:.2f} GiB" if facts.get("peak_mib") else ""
    counted = [facts.get("launches", ""), facts.get("synchronizations", "")]
    cells = [f"{line.name:52}", f"{peak:>10}", *(f"{cell!s:>5}" for cell in counted)]
    cells += [f"{line.seconds:6.0f} s", "ok" if not line.problems else "; ".join(line.problems)]
    print("  ".join(cells), flush=True)
    return line


def write(lines):
    """Writes docs/virtual_gpu.csv: what was counted of each run of a technique.

    Rows of cards and shapes that `lines` do not have stay as they are.
    """
    path = ROOT / "docs" / "virtual_gpu.csv"
    facts = [line.facts for line in lines if line.facts]
    ran = {of_row(row) for row in facts}
    with path.open(newline="") as file:
        facts += [row for row in csv.DictReader(file) if of_row(row) not in ran]
    smaller = {(card, shape[0]) for card, shape in checks.SMALLER.items()}
    facts.sort(key=lambda row: of_row(row)[:2] in smaller)  # these last, else as they are
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(facts)


def of_row(row):
    """Card, model and length: what tells checks.TINY, FULL and SMALLER apart."""
    return row["profile"], row["model"], int(row["seq_len"])


if __name__ == "__main__":
    sys.exit(main())

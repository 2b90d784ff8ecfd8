"""Many scripts, many rounds, one process each.

    python -m Utils.suite [TECHNIQUE ...] [flags of the scripts]

Round r runs every technique once with seed SEED + r, and every other round goes backwards, so
that a machine that warms up or slows down does so for and against each. What cannot run here, or
fails, stops nothing else. Ends with one table.
"""

import os
import signal
import subprocess
import sys
from itertools import takewhile

from Utils import ladder, results, settings, summary
from Utils.errors import UserError


def main(argv):
    """Runs techniques (default: all at the top level). Returns the exit code: 0, or 1 where a run
    failed or did not fit into memory, or 2 where the settings are not possible."""
    names = list(takewhile(lambda word: not word.startswith("-"), argv))
    flags = argv[len(names) :]
    chosen = [ladder.get(name) for name in names] or [
        technique
        for technique in ladder.techniques().values()
        if technique.path.parent == ladder.ROOT
    ]
    parser = settings.Parser("suite", __doc__)
    settings.add_settings(parser)
    args = parser.parse_args(flags)
    path = args.results_file
    known = {row["run_id"] for row in results.check(path)}

    plan = [(r, t) for r in range(args.rounds) for t in (chosen if r % 2 == 0 else chosen[::-1])]
    silent = []  # runs that ended badly and left no row themselves
    for number, (r, technique) in enumerate(plan, 1):
        print(f"\n[{number}/{len(plan)}] round {r}", file=sys.stderr, flush=True)
        own = ["--rounds", "1", "--round", str(r), "--seed", str(args.seed + r)]
        before = len(results.check(path))
        code = _python(*technique.command, *flags, *own)
        if code == 2:
            return 2  # it said why, and the others would say the same
        if code in (130, -signal.SIGINT):
            print("interrupted; run again to repeat what is missing", file=sys.stderr)
            return 130
        if code and len(results.check(path)) == before:
            reason = f"ended with exit code {code} before it could say why"
            if code < 0:
                hint = " (out of memory?)" if code == -signal.SIGKILL else ""
                reason = f"killed by {signal.Signals(-code).name}{hint}"
            if _python("-m", "Utils.run", technique.name, reason, *flags, *own):
                silent.append(f"{technique.name}: failed: {reason}")

    rows = results.read(path)
    new = rows[~rows.run_id.isin(known)]
    print()
    print(summary.table(*summary.select(new)))
    print(*silent, sep="\n", end="\n" if silent else "")
    return 1 if silent or new.status.isin(["failed", "out_of_memory"]).any() else 0


def _python(*command):
    """Runs Python with the project on its path, its output going where ours goes. Exit code."""
    environment = {**os.environ, "PYTHONPATH": str(ladder.ROOT)}
    process = subprocess.Popen([sys.executable, *command], env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass  # the terminal has told the child as well: let it end first


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"suite: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)

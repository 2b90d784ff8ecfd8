"""The plan for a device: its pieces, what has ended of them, and the run of the next."""

import sys
import time
from argparse import Namespace

from tools.peers.loops import tracked_part
from tools.rented import expected_steps, pieces
from Utils.base import child, files, paths
from Utils.base.child import in_child
from Utils.base.command_line import RUN_SETTINGS
from Utils.base.errors import say
from Utils.launch.costs import Costs, compiles
from Utils.results import rows_file
from Utils.scripts.ladder import repository

COMPLETE = (0, 1)  # exit codes of a piece; after 1 a script has failed, which has its row
IGNORED = ("results_file", "rounds", "round", "minutes")  # settings that decide no plan
ENDED = {
    "code": (int, None),  # None if it was out of time
    "reason": str,
    "seconds": float,
    "expected_s": float,
    "runs": [pieces.RUN],
}
FORECAST = {"script": str, "shape": [int], "seconds": ([float], None), "reason": str}
STATE = {"conditions": {"*": (str, int, float)}, "forecasts": [FORECAST], "ended": {"*": ENDED}}


class Plan:
    """A plan, kept in a file beside the results file.

    args: the command's settings. loops: names of what `make peers` runs.

    conditions: of `expected_steps.conditions`, with the commit and the settings. Plans of other
    conditions have other files.
    pieces: the most useful first.
    forecasts: each a FORECAST, by (script, batch size, tokens a sequence).
    ended: what each piece took and showed, by name, a dict of ENDED.
    """

    def __init__(self, args, loops):
        self.args = args
        self.values = {name: getattr(args, name) for name in RUN_SETTINGS if name not in IGNORED}
        self.conditions = in_child(expected_steps.conditions, self.values)
        self.conditions |= {"commit": paths.commit(), "settings": repr(self.values)}

        self.ladder = tracked_part(repository(self.conditions["precision"]))
        shape = [self.conditions[name] for name in ("batch_size", "seq_len", "longest")]
        self.pieces = pieces.in_order(self.ladder, *shape, loops)

        # What is there already.
        name = f"plan-{paths.digest(repr(self.conditions))}.json"
        self.file = args.results_file.with_name(name)
        state = files.read_cache(self.file, STATE)
        if not state:
            say("forecasting a step of each script, once", sys.stderr)
            names = {}  # by shape
            for piece in self.pieces:
                names.setdefault(piece.shape, set()).update(piece.scripts)
            forecasts = in_child(expected_steps.forecasts, self.values, names)
            state = {"forecasts": forecasts, "ended": {}}
        self.forecasts = {(f["script"], *f["shape"]): f for f in state["forecasts"]}
        self.ended = state["ended"]
        self.write()

    def missing(self):
        """Return the pieces that are not complete."""
        complete = {name for name, ended in self.ended.items() if ended["code"] in COMPLETE}
        return [piece for piece in self.pieces if piece.name not in complete]

    def seconds(self, piece):
        """Return the expected seconds of a piece, by pieces that have ended and by forecasts."""
        step_s = {
            script: forecast["seconds"][0]
            for (script, *shape), forecast in self.forecasts.items()
            if (*shape,) == piece.shape and forecast["seconds"]
        }
        starts_s = []
        compilations_s = []
        for ended_piece in self.pieces:
            for run in self.ended.get(ended_piece.name, {}).get("runs", ()):
                starts_s.append(run["start_s"])
                if compiles(run["script"], self.ladder):
                    compilations_s.append(run["first_step_s"])
                if ended_piece.shape == piece.shape:
                    step_s[run["script"]] = run["step_s"]

        settings = Namespace(**vars(self.args) | {"min_seconds": self.conditions["min_seconds"]})
        costs = Costs(settings, self.ladder, step_s)
        costs.starts_s = starts_s
        costs.compilations_s = compilations_s
        return costs.seconds(pieces.runs(piece, self.ladder))

    def refusal(self, piece):
        """Return the reason why the first script of a piece, its base, does not run, or ""."""
        return self.forecasts.get((piece.scripts[0], *piece.shape), {}).get("reason", "")

    def next_piece(self, seconds, tried=()):
        """Return the first piece that is not complete and fits into this time, None without one.

        tried: names of pieces that this command has run.
        """
        for piece in self.missing():
            fits = self.seconds(piece) <= seconds
            if fits and piece.name not in tried and not self.refusal(piece):
                return piece
        return None

    def run(self, piece, seconds):
        """Run a piece for at most this time, and write down how it ended."""
        path = self.args.results_file
        size_before = rows_file.whole_size(path) if path.exists() else 0
        expected_s = self.seconds(piece)
        start = time.monotonic()
        done = child.run(self._command(piece), paths.environment(), seconds)
        reason = "out of time" if done.code is None else done.reason
        ended = {
            "code": done.code,
            "reason": "" if done.code in COMPLETE else reason,
            "expected_s": expected_s,
            "seconds": time.monotonic() - start,
        }
        rows = rows_file.read_as_texts(path, size_before)
        ended["runs"] = pieces.measured(rows, ended["seconds"])
        self.ended[piece.name] = ended
        self.write()

    def write(self):
        state = {"conditions": self.conditions, "ended": self.ended}
        files.write_json(self.file, state | {"forecasts": [*self.forecasts.values()]})

    def _command(self, piece):
        """Return the arguments of the process of a piece."""
        values = self.values | {"results_file": self.args.results_file, "rounds": 1}
        values |= {name: getattr(piece, name) for name in ("round", "batch_size", "seq_len")}
        module, *words = piece.command
        if module == "tools.peers":
            words.append(f"PEERS={self.args.peers}")
        # A command leaves out assignments of settings that it does not have.
        words += [f"{name.upper()}={value}" for name, value in values.items()]
        return [sys.executable, "-m", module, *words]

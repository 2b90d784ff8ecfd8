"""Progress of a suite: lines, and on a terminal one that moves."""

import math
import re
import shutil
import sys
import time

from tqdm import tqdm

from Utils.analysis.text_tables import WIDEST

LOG_PREFIX = r"^\S*[VIWEC]\d{4} [\d:.]+ \d+ "  # time and process of a line of torch's log


class SuiteProgress:
    """What runs, and how long it still takes. left: runs.

    Where stderr is no terminal, what runs is printed in lines.
    """

    def __init__(self, left):
        self.left = left
        self.ended = 0
        self.round = 0
        self.started = time.monotonic()
        self.printed = set()
        size = shutil.get_terminal_size()  # tqdm draws nothing where a terminal does not say it
        shape = {"ncols": min(WIDEST, size.columns) - 1, "nrows": size.lines}
        form = "{desc} {bar} [{elapsed}]"
        self.bar = tqdm(disable=None, leave=False, bar_format=form, **shape)

    def say(self, line):
        tqdm.write(line, file=sys.stderr)

    def next(self, r, names):
        """Begin a group of runs of round r."""
        self.round = r
        self.bar.total = None
        if self.bar.disable:
            of_all = f"[{self.ended + 1}/{self.ended + self.left}]"
            left = self._time_left(0.0, 0) if self.ended else ""
            self.say(f"\n{of_all} round {r}{left}: {names}")

    def show(self, text, compiles=False):
        """Show what runs."""
        if self.bar.disable:
            self.say(f"  {text}")
        else:
            remark = "; compiling can take minutes" if compiles else ""
            self.bar.set_description_str(f"round {self.round}: {text}{remark}")

    def train(self, name, done, total, members):
        """Show the script that trains. done, total: steps of all members of its group, a number."""
        left = ""
        if done:
            step_s = (time.monotonic() - self.turns_began) / done
            left = self._time_left(step_s * (total - done), members)
        else:
            self.turns_began = time.monotonic()
        self.bar.n, self.bar.total = done, total
        self.bar.set_description_str(f"round {self.round}: {name}, step {done}/{total}{left}")

    def _time_left(self, group_s, members):
        """Return the time until all have run. group_s: until the members of a group have."""
        run_s = (time.monotonic() - self.started + group_s) / (self.ended + members)
        seconds = group_s + run_s * max(0, self.left - members)
        return f", about {math.ceil(seconds / 60)} min left"

    def say_once(self, text, by_line=True):
        """Print the lines of a text, or all of it, that no run of this suite has printed before."""
        parts = text.splitlines() if by_line else [text]
        keys = [re.sub(LOG_PREFIX, "", part) for part in parts]
        new = [part for part, key in zip(parts, keys, strict=True) if key not in self.printed]
        self.printed.update(keys)
        if any(new):
            self.say("\n".join(new))

"""Progress on stderr: a bar on a terminal, otherwise lines."""

import shutil
import sys
import threading
import time

from tqdm import tqdm

from Utils.base.text import WIDEST

FORM = "{desc} {bar} {n_fmt}/{total_fmt} {postfix} [{elapsed}<{remaining}]"
DRAWING_S = 0.25  # between two drawings of a bar by `show_steps`
LINE_S = 10  # between two lines
tqdm.monitor_interval = 0  # no thread of tqdm during a measured loop
tqdm.set_lock(threading.RLock())  # tqdm's default is a semaphore, which a killed worker leaves


class ProgressDisplay(tqdm):
    """A bar as wide as the terminal or a table, which is removed at the end; otherwise lines.

    is_hidden: neither, as for ranks but 0.
    options: keyword arguments of tqdm.
    """

    def __init__(self, title="", total=None, form=FORM, is_hidden=False, **options):
        self.is_hidden = is_hidden
        self.shown_at = time.perf_counter()
        super().__init__(
            desc=title,
            total=total,
            leave=False,
            ncols=min(WIDEST, shutil.get_terminal_size().columns) - 1,
            nrows=2,  # without it nothing is drawn on a terminal of unknown size
            miniters=1,
            disable=is_hidden or None,  # None: unless stderr is a terminal
            bar_format=form,
            **options,
        )

    def say(self, line):
        """Print a line above the bar."""
        if not self.is_hidden:
            self.write(line, file=sys.stderr)

    def say_without_bar(self, line):
        if self.disable:
            self.say(line)

    def is_due(self):
        """Return whether the last `show_steps` was some time ago. It reads the clock once."""
        interval_s = LINE_S if self.disable else DRAWING_S
        return not self.is_hidden and time.perf_counter() - self.shown_at >= interval_s

    def show_steps(self, done, text):
        """Show how many steps are done, and a text on the last."""
        self.shown_at = time.perf_counter()
        self.n = done
        self.total = max(self.total, done)
        self.say_without_bar(f"  step {done}/{self.total}  {text}")
        self.set_postfix_str(text)

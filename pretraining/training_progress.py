"""Progress of a training run on stderr: a bar on a terminal, a line at times elsewhere."""

import sys
import time

from tqdm import tqdm

BAR = "{desc} {bar:16} {n_fmt}/{total_fmt} {postfix} [{elapsed}]"


class Progress:
    def __init__(self, args, start):
        self.args, self.interval = args, 0.5 if sys.stderr.isatty() else 10
        self.shown_at, self.validation = time.perf_counter(), None
        quiet = None if args.rank == 0 else True  # None: where stderr is no terminal
        shown = {"bar_format": BAR, "desc": args.model, "postfix": "first step", "leave": False}
        self.bar = tqdm(total=args.steps, initial=start, disable=quiet, **shown)

    def show(self, row):
        """Show a row of the history, unless another has been shown just now."""
        now = time.perf_counter()
        if now - self.shown_at < self.interval:
            return
        self.shown_at = now
        text = (
            f"loss {row['training_loss']:.3f}  {row['tokens_per_second']:,.0f} tokens/s  "
            f"epoch {row['epoch']:.2f}  {row['hours_left']:.2f} h left  "
            f"memory {row['memory_share']:.0%}"
        )
        if self.validation is not None:
            text = f"validation {self.validation:.3f}  {text}"
        if self.bar.disable:
            print(f"  step {row['step']}/{self.args.steps}  {text}", file=sys.stderr)
        else:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(row["step"] - self.bar.n)

    def say(self, text):
        """Print a line that stays."""
        self.bar.write(text, file=sys.stderr)

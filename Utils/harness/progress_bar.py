"""Progress of a run on stderr."""

import sys
import time

import numpy as np
from tqdm import tqdm


class ProgressBar:
    """A bar on a terminal; elsewhere a line every ten seconds.

    A step costs one reading of the clock. Drawing happens right before a step boundary, at most
    four times a second, from values that are already on the host.
    """

    def __init__(self, args, model):
        self.args = args
        self.silent = args.rank or args.turn  # others train in between
        self.interval_s = 0.25 if sys.stderr.isatty() else 10
        self.tokens = args.batch_size * args.seq_len
        compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None)
        first = "compiling, which can take minutes" if compiled else "first step"
        self.bar = tqdm(
            total=args.steps,
            disable=True if self.silent else None,  # None: where stderr is no terminal
            leave=False,
            miniters=1,
            mininterval=0,
            bar_format="{desc} {bar:20} {n_fmt}/{total_fmt} {postfix} [{elapsed}<{remaining}]",
            desc=args.technique,
            postfix=first,
        )
        if self.bar.disable and not self.silent:
            print(f"  {first} ...", file=sys.stderr)
        self.drawn_at = time.perf_counter()
        self.drawn_step = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.bar.close()

    def show(self, step, losses):
        now = time.perf_counter()
        if self.silent or (now - self.drawn_at < self.interval_s and step):
            return
        step_s = (now - self.drawn_at) / (step + 1 - self.drawn_step)
        text = f"{step_s * 1e3:,.1f} ms  {self.tokens / step_s:,.0f} tokens/s"
        if losses and isinstance(losses[-1], float):  # reading a tensor would wait for the device
            text += f"  loss {losses[-1]:.3f}"
        self.drawn_at = now
        self.drawn_step = step + 1
        if self.bar.disable:
            total = max(self.args.steps, step + 1)  # a run of --min-seconds has more
            print(f"  step {step + 1}/{total}  {text}", file=sys.stderr)
        else:
            self.bar.total = max(self.args.steps, step + 1)
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(step + 1 - self.bar.n)


def headline(args):
    auto = " (chosen for this device)" if args.auto else ""
    several = f" and {args.world_size - 1} more like it" if args.world_size > 1 else ""
    return (
        f"{args.technique} on {args.hardware.name}{several}: {args.model}, "
        f"{args.batch_size}x{args.seq_len} tokens a step{auto}, {args.dataset}, {args.steps} steps"
    )


def last_line(args, rows, reasons):
    timed = [row["step_ms"] for row in rows if row["phase"] == "timed"]
    p20, median, p80 = np.percentile(timed, [20, 50, 80])
    tokens = args.batch_size * args.seq_len / median * 1e3
    tainted = [f"tainted: {' and '.join(reasons)}"] if reasons else []
    notes = "; ".join(args.notes + tainted)
    note = f"  ({notes})" if notes else ""
    loss = "" if rows[-1]["loss"] is None else f", loss {rows[-1]['loss']:.3f}"
    return (
        f"{args.technique}: median {median:,.1f} ms (p20-p80 {p20:,.1f}-{p80:,.1f}), "
        f"{tokens:,.0f} tokens/s, first step {rows[0]['first_step_s']:.1f} s, "
        f"peak memory {rows[0]['peak_memory_mib']:,.0f} MiB{loss}{note}"
    )

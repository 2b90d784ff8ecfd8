"""Progress of a run on stderr, and its last line."""

import sys
import time
from contextlib import contextmanager

import numpy as np
from tqdm import tqdm


@contextmanager
def progress(args, model):
    """Yield a function of (number of steps, their losses) that shows a bar, elsewhere than on a
    terminal a line every ten seconds.
    A call costs one reading of the clock. Drawing happens right before a step boundary, at most
    four times a second, from values that are already on the host.
    """
    if args.rank or args.turn:  # others train in between
        yield lambda steps, losses: None
        return
    several = f" and {args.world_size - 1} more like it" if args.world_size > 1 else ""
    print(
        f"{args.technique} on {args.hardware.name}{several}: {args.model}, "
        f"{args.batch_size}x{args.seq_len} tokens a step, {args.dataset}, {args.steps} steps",
        file=sys.stderr,
    )
    compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None)
    first = "compiling, which can take minutes" if compiled else "first step"
    style = "{desc} {bar:20} {n_fmt}/{total_fmt} {postfix} [{elapsed}<{remaining}]"
    options = {"desc": args.technique, "postfix": first, "bar_format": style, "leave": False}
    always = {"miniters": 1, "mininterval": 0}  # as often as `show` asks
    drawn_at = time.perf_counter()
    drawn_steps = 0

    def show(steps, losses):
        nonlocal drawn_at, drawn_steps
        now = time.perf_counter()
        if now - drawn_at < (10 if bar.disable else 0.25) and steps > 1:
            return
        step_s = (now - drawn_at) / (steps - drawn_steps)
        text = f"{step_s * 1e3:,.1f} ms  {args.batch_size * args.seq_len / step_s:,.0f} tokens/s"
        if losses and isinstance(losses[-1], float):  # reading a tensor would wait for the device
            text += f"  loss {losses[-1]:.3f}"
        drawn_at = now
        drawn_steps = steps
        bar.total = max(args.steps, steps)  # a run of --min-seconds has more
        if bar.disable:
            print(f"  step {steps}/{bar.total}  {text}", file=sys.stderr)
        else:
            bar.set_postfix_str(text, refresh=False)
            bar.update(steps - bar.n)

    with tqdm(total=args.steps, disable=None, **options, **always) as bar:  # None: on a terminal
        if bar.disable:
            print(f"  {first} ...", file=sys.stderr)
        yield show


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

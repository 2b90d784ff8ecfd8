"""Progress of a run on stderr, and its last line."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from tqdm import tqdm

from Utils.harness.settings import Settings

BAR = "{desc} {bar:20} {n_fmt}/{total_fmt} {postfix} [{elapsed}<{remaining}]"


@contextmanager
def progress(args: Settings, model: torch.nn.Module) -> Iterator[Callable[[int, list], None]]:
    """Yield a function of the number of steps and their losses, which shows the progress.

    On a terminal it draws a bar, otherwise it prints a line every ten seconds. A call costs one
    reading of the clock. Drawing happens right before a step boundary, at most four times a second,
    from values that are already on the host.
    """
    if args.rank or args.turn:  # other runs train in between
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

    with tqdm(
        desc=args.technique,
        total=args.steps,
        leave=False,
        miniters=1,  # with mininterval: draws whenever `show` asks for it
        mininterval=0,
        disable=None,  # unless stderr is a terminal
        bar_format=BAR,
        postfix=first,
    ) as bar:
        if bar.disable:
            print(f"  {first} ...", file=sys.stderr)
        yield show


def last_line(args: Settings, rows: list[dict], reasons: list[str]) -> str:
    """Return a run's times, memory, loss and notes. reasons: why it is disturbed."""
    timed = [row["step_ms"] for row in rows if row["phase"] == "timed"]
    p20, median, p80 = np.percentile(timed, [20, 50, 80])
    tokens = args.batch_size * args.seq_len / median * 1e3

    tainted = [f"disturbed: {' and '.join(reasons)}"] if reasons else []
    notes = "; ".join(args.outcome.notes + tainted)
    note = f"  ({notes})" if notes else ""
    loss = "" if rows[-1]["loss"] is None else f", loss {rows[-1]['loss']:.3f}"
    return (
        f"{args.technique}: median {median:,.1f} ms (p20-p80 {p20:,.1f}-{p80:,.1f}), "
        f"{tokens:,.0f} tokens/s, first step {rows[0]['first_step_s']:.1f} s, "
        f"peak memory {rows[0]['peak_memory_mib']:,.0f} MiB{loss}{note}"
    )

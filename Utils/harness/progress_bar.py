"""Progress of a run on stderr, and its last line."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from Utils.base.progress_display import ProgressDisplay
from Utils.harness.settings import Settings
from Utils.results.row_rules import LAST_STEPS


@contextmanager
def progress(args: Settings, model: torch.nn.Module) -> Iterator[Callable[[int, list], None]]:
    """Yield a function of the number of steps and their losses, which shows the progress.

    A call costs one reading of the clock. Drawing happens right before a step boundary, from values
    that are already on the host.
    """
    compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None)
    first = "compiling, which can take minutes" if compiled else "first step"
    is_hidden = bool(args.rank or args.turn)  # other runs train in between

    def show(steps, losses):
        if steps > 1 and not display.is_due():
            return

        step_s = (time.perf_counter() - display.shown_at) / (steps - display.n)
        text = f"{step_s * 1e3:,.1f} ms  {args.batch_size * args.seq_len / step_s:,.0f} tokens/s"
        if losses and isinstance(losses[-1], float):  # reading a tensor would wait for the device
            text += f"  loss {losses[-1]:.3f}"
        display.show_steps(steps, text)

    with ProgressDisplay(args.technique, args.steps, is_hidden=is_hidden, postfix=first) as display:
        several = f" and {args.world_size - 1} more like it" if args.world_size > 1 else ""
        display.say(
            f"{args.technique} on {args.hardware.name}{several}: {args.model}, "
            f"{args.batch_size}x{args.seq_len} tokens a step, {args.dataset}, {args.steps} steps"
        )
        display.say_without_bar(f"  {first} ...")
        yield show


def last_line(args: Settings, rows: list[dict], reasons: list[str]) -> str:
    """Return a run's times, memory, loss as in tables, and notes. reasons: why it is disturbed."""
    timed = [row for row in rows if row["phase"] == "timed"]
    p20, median, p80 = np.percentile([row["step_ms"] for row in timed], [20, 50, 80])
    tokens = args.batch_size * args.seq_len / median * 1e3

    disturbed = [f"disturbed: {' and '.join(reasons)}"] if reasons else []
    notes = "; ".join(args.outcome.notes + disturbed)
    note = f"  ({notes})" if notes else ""
    loss = rows[0]["held_out_loss"]
    if loss is None:
        loss = np.mean([row["loss"] for row in timed[-LAST_STEPS:]])
    return (
        f"{args.technique}: median {median:,.1f} ms (p20-p80 {p20:,.1f}-{p80:,.1f}), "
        f"{tokens:,.0f} tokens/s, first step {rows[0]['first_step_s']:.1f} s, "
        f"peak memory {rows[0]['peak_memory_mib']:,.0f} MiB, loss {loss:.3f}{note}"
    )

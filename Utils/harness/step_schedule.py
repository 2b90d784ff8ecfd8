"""How many steps a run has, and where its clock stops in between."""

import math

from Utils.base.units import MIB
from Utils.harness import ranks

WARMUP_SHARE = 0.2  # of min_seconds


def stretches(args, clock):
    """Yield (steps, warm-up steps at its start) of each stretch of a run, until it is complete.

    A run has --steps steps. On a GPU it has more where they would last less than --min-seconds: its
    length follows from the last warm-up step, before the first timed step. A run that takes turns
    gets each stretch from its launcher, and its first step is warm-up, since caches hold the data
    of others. One stretch ends at step --steps, where losses are compared.

    args: Settings. clock: the run's StepClock.
    """
    done = 0
    for steps, warmup in _planned(args, clock):
        before = args.steps - done
        if 0 < before < steps:
            yield before, min(warmup, before)
            more = int(warmup <= before)  # a step in place of the one that follows the pause
            yield steps - before + more, max(0, warmup - before) + more
        else:
            yield steps, warmup
        done += steps


def _planned(args, clock):
    if not args.turn and not args.min_seconds:
        yield args.steps, args.warmup
        return
    yield args.warmup, args.warmup
    pace_s = clock.pace_s()
    warmup = 0
    timed = args.steps - args.warmup
    if args.min_seconds and pace_s:
        pace_s = max(ranks.gather(pace_s)) if args.world_size > 1 else pace_s
        warmup = max(1, math.ceil(args.min_seconds * WARMUP_SHARE / pace_s) - args.warmup)
        timed = max(timed, math.ceil(args.min_seconds / pace_s))
    if not args.turn:
        yield warmup + timed, warmup
        return
    if warmup:
        yield warmup, warmup
    peak_mib = args.hardware.peak_memory_mib()
    free_mib = args.hardware.free_memory_bytes / MIB
    while timed > 0:
        granted = args.turn.wait(left=timed, pace_s=pace_s, peak_mib=peak_mib, free_mib=free_mib)
        steps = min(granted, timed)
        yield steps, 1
        timed -= steps

"""The measured loop of a training script.

A step lasts from one boundary to the next and includes everything: waiting for the batch, the
script's code, and a few microseconds of bookkeeping. The clock is the device's; on a GPU the loop
adds no synchronization.
"""

import runpy
import signal
import sys
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from unittest.mock import patch

from Utils.base import files
from Utils.base.command_line import spelled
from Utils.base.errors import UserError, say
from Utils.harness import held_out_loss, memory_kinds, progress_bar, ranks, run_record
from Utils.harness.first_gradients import FirstGradients
from Utils.harness.script_start import run_script
from Utils.harness.step_clock import StepClock
from Utils.results import rows_file

__all__ = ["Run", "execute", "run_script"]


class Run:
    """One measured training run. Its rows are appended at the end of the `with` block.

    model and optimizer are read for the record, never changed.
    """

    def __init__(self, args, model, optimizer):
        self.args = args
        self.model = model
        self.optimizer = optimizer
        self.clock = StepClock(args.hardware)
        self.gradients = memory_kinds.GradientWatch(model)
        self.first_gradients = FirstGradients(model, optimizer)
        self.data_ms = []
        self.losses = []
        self.memory = None
        self.held_out_loss = None
        self.dataset_facts = {}

    def __enter__(self):
        self.args.hardware.reset_peak_memory()
        return self

    def steps(self, batches):
        """Yield one batch a step, and mark the boundaries between steps.

        batches: an iterable. If it has fewer batches than the run has steps, it begins again.
        Raises UserError if it has none.
        """
        args = self.args
        self.dataset_facts = getattr(getattr(batches, "dataset", batches), "facts", {})

        self.batches = batches
        with files.uninterrupted([signal.SIGINT]):  # otherwise workers that start print tracebacks
            self.iterator = iter(batches)

        with progress_bar.progress(args, self.model) as show:
            steps = self.clock.steps(args, lambda: self.gradients, self._evaluate)
            for step, _ in enumerate(steps):
                is_first = step == 0 and args.warmup  # no timed step is watched
                with self.first_gradients if is_first else nullcontext():
                    yield self._next_batch()
                show(len(self.data_ms), self.losses)

    def log(self, loss):
        """Record the step's loss: a float, or a 0-d tensor, which is read after the run."""
        self.losses.append(loss)

    def _next_batch(self):
        """Return the next batch, after the last one the first, and record the time it took."""
        start = perf_counter()
        batch = next(self.iterator, None)
        if batch is None:  # another epoch
            self.iterator = iter(self.batches)
            batch = next(self.iterator, None)
        self.data_ms.append((perf_counter() - start) * 1e3)

        if batch is None:
            raise UserError(f"{spelled('dataset', self.args.dataset)}: holds no more text")
        return batch

    def _evaluate(self):
        """Measure memory and loss after step --steps, while the clock is stopped."""
        self.memory = memory_kinds.memory_by_kind(
            self.args.hardware, self.model, self.optimizer, self.gradients.peak
        )
        self.held_out_loss = held_out_loss.loss(self.args, self.model)

    def __exit__(self, kind, error, trace):
        if kind is not None:
            return

        # Check that the script's loop was complete.
        args = self.args
        timed = self.clock.timed
        losses = [float(loss) for loss in self.losses]
        if len(losses) < self.clock.length or len(losses) != len(timed):
            raise RuntimeError(
                f"{len(timed)} steps and {len(losses)} losses were recorded; the loop must "
                "take all batches of run.steps and call run.log once a step"
            )

        if self.memory is None:  # no step after --steps
            self._evaluate()

        skipped = len(losses) - memory_kinds.updates(self.optimizer)
        if "float16" in args.needs and skipped > 0 and not max(losses) < 1e-3:
            overflowed = f"{skipped} of {len(losses)} updates skipped: gradients overflowed"
            args.outcome.notes.append(overflowed)

        before_update = {"loss": losses[0]}
        if self.first_gradients.norm is not None:
            before_update["gradient_norm"] = float(self.first_gradients.norm)

        # Combine the measurements of all ranks. The first one writes them.
        result = run_record.RankResult(
            step_ms=self.clock.step_ms(),
            data_ms=self.data_ms,
            timed=timed,
            losses=losses,
            held_out_loss=self.held_out_loss,
            before_update=before_update,
            memory=self.memory,
            counters=self.clock.counter_growth(),
            readings=args.hardware.readings(),
            updated=memory_kinds.updated(self.model, self.optimizer),
            node=args.node,
            other_processes=list(args.hardware.other_processes),
            steps=self.clock.length,
        )
        args.outcome.is_recorded = True
        all_ranks = ranks.gather(result) if args.world_size > 1 else [result]
        if args.rank == 0:
            self.write(all_ranks)

    def write(self, all_ranks):
        """Append the rows and the record of a run, and print its last line.

        all_ranks: the RankResult of each rank.
        """
        rows, record = run_record.combine(
            self.args, all_ranks, self.model, self.optimizer, self.dataset_facts
        )
        rows_file.append(self.args.results_file, rows, record)
        if not self.args.turn:  # otherwise the launcher prints a table, after all turns
            say(progress_bar.last_line(self.args, rows, record["quality"]["reasons"]))


def execute(technique, argv, run, passes=lambda error: True):
    """Run a technique's script in this process, with the class `run` in place of Run.

    technique: a ladder.Technique.
    argv: flags of the script.
    passes: function of an exception of the script. If it returns True, the exception reaches the
        caller; otherwise the process ends as in `run_script`.
    """
    path = str(technique.path)
    measured_script = partial(run_script, passes=passes, records=False)
    search_path = [str(technique.path.parent), *sys.path]  # as Python sets it for a script

    try:
        with (
            patch.multiple(sys.modules[__name__], Run=run, run_script=measured_script),
            patch.multiple(sys, argv=[path, *argv], path=search_path),
        ):
            runpy.run_path(path, run_name="__main__")
    finally:
        ranks.leave()

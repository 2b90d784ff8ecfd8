"""The measured loop, and the start of a script.

A step lasts from one boundary to the next and includes everything: waiting for the batch, the
script's code, and a few microseconds of bookkeeping. The clock is the device's; on a GPU the loop
adds no synchronization.
"""

import runpy
import signal
import sys
import time
from contextlib import contextmanager

from Utils.base.errors import UserError
from Utils.harness import (
    batch_units,
    exits,
    held_out_loss,
    log_filters,
    memory_kinds,
    own_model_flops,
    progress_bar,
    rank_results,
    ranks,
    run_record,
    step_schedule,
)
from Utils.harness.settings import check_needs, parse_args
from Utils.harness.step_clock import Stretches
from Utils.scripts import bases


def run_script(main, doc):
    """Run a training script from the command line.

    main: function of the Settings. doc: the script's docstring, for --help and for its needs.
    An exception ends the process with a row or one line: see `ends.call`.
    """
    args = parse_args(doc)
    exits.call(lambda args: start(main, args), args)


def start(main, args):
    """Check the needs of a script and call its main function."""
    log_filters.prepare(main)
    check_needs(args)
    if "distributed" in args.needs:
        ranks.stand_alone()
    elif args.world_size > 1:
        raise UserError(
            "this script does not support several ranks",
            "use one with distributed among its Needs, such as distributed_data_parallel",
        )
    main(args)


def execute(technique, argv, run, passes=lambda error: True):
    """Run a technique's script in this process, with the class `run` in place of Run.

    technique: of `ladder`. argv: its flags. passes: function of an exception of the script; where
    it is true, the exception gets through to the caller. Any other ends as `ends.call` says.
    """
    module, command_line, usual = sys.modules[__name__], sys.argv, (Run, run_script)

    def run_here(main, doc):
        exits.call(lambda args: start(main, args), parse_args(doc), passes)

    module.Run, module.run_script = run, run_here
    sys.argv = [str(technique.path), *argv]
    sys.path.insert(0, str(technique.path.parent))  # as of a script that Python starts
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        sys.path.remove(str(technique.path.parent))
        (module.Run, module.run_script), sys.argv = usual, command_line
        ranks.leave()


class Run:
    """One measured training run. Its rows are appended at the end of the `with` block.

    model, optimizer: read for the record, never changed.
    """

    def __init__(self, args, model, optimizer):
        self.args, self.model, self.optimizer = args, model, optimizer
        self.watch = Stretches(args.hardware)
        self.data_ms, self.losses = [], []
        self.gradients = memory_kinds.GradientWatch(model)
        self.dataset_facts, self.memory, self.held_out = {}, None, None
        self.sizes, self.outline = [], None  # of batches that are the script's own
        alone = args.world_size == 1  # one rank could not repeat a call that waits for the others
        self.call = own_model_flops.Call(model) if bases.OWN_MODEL in args.owns and alone else None

    def __enter__(self):
        self.args.hardware.reset_peak_memory()
        if self.args.rank == 0 and not self.args.turn:
            print(progress_bar.headline(self.args), file=sys.stderr)
        return self

    def steps(self, batches):
        """Yield one batch a step, and mark the boundaries between steps.

        batches: an iterable, which begins again where it has fewer batches than the run has steps.
        A batch is anything. Raises UserError where there is none.
        """
        args, watch, clock = self.args, self.watch, time.perf_counter
        self.dataset_facts = getattr(getattr(batches, "dataset", batches), "facts", {})
        watched = 1 if args.warmup >= 3 else None  # watching slows the next step as well
        kept = args.warmup - 1 if args.warmup >= 3 else None  # so does a changed malloc
        counted = bases.OWN_DATA in args.owns
        with _uninterrupted():  # an interrupted start of workers prints tracebacks
            source, batches = batches, iter(batches)
        with progress_bar.Progress(args, self.model) as bar:
            for steps, warmup in step_schedule.stretches(args, watch):
                if len(self.data_ms) == args.steps:
                    self._evaluate()
                if not warmup:
                    watch.count()
                watch.start()
                for number in range(1, steps + 1):
                    start = clock()
                    batch = next(batches, None)
                    if batch is None:  # another epoch
                        batches = iter(source)
                        batch = next(batches, None)
                    self.data_ms.append((clock() - start) * 1e3)
                    if batch is None:
                        raise UserError(self._no_batch())
                    if counted and not self.sizes:
                        self.outline = batch_units.outline(batch)
                    if counted:
                        self.sizes.append(batch_units.size(batch, args.unit))
                    if len(self.data_ms) - 1 == watched:
                        with self.gradients:
                            yield batch
                    else:
                        yield batch
                    if len(self.data_ms) == kept:
                        args.hardware.keep_freed_memory(grows=counted)
                    if number == warmup < steps:  # its cost is part of the last warm-up step
                        watch.count()
                    watch.step(timed=number > warmup)
                    bar.show(len(self.data_ms) - 1, self.losses)
                watch.stop()

    def _no_batch(self):
        if self.sizes or bases.OWN_DATA in self.args.owns:
            return f"the batches end after {len(self.sizes)} steps and cannot begin again"
        return f"--dataset {self.args.dataset}: holds no more text"

    def _evaluate(self):
        """Measure memory and loss after step --steps, while the clock is stopped."""
        args = self.args
        self.memory = memory_kinds.memory(
            args.hardware, self.model, self.optimizer, self.gradients.peak
        )
        if not args.owns:
            self.held_out = held_out_loss.loss(args, self.model)

    def log(self, loss):
        """Record the step's loss: a float, or a 0-d tensor, which is read after the run."""
        self.losses.append(loss)

    def __exit__(self, kind, error, trace):
        if kind is not None:
            return
        args, watch = self.args, self.watch
        if bases.OWN_DATA in args.owns:
            batch_units.settle(args, self.sizes)
        losses = [float(loss) for loss in self.losses]
        if len(losses) < args.steps or len(losses) != len(watch.timed):
            raise RuntimeError(
                f"{len(watch.timed)} steps and {len(losses)} losses were recorded; the loop must "
                "take all batches of run.steps and call run.log once a step"
            )
        if self.memory is None:  # no step after --steps
            self._evaluate()
        measurements = rank_results.Measured(
            watch.step_ms(),
            self.data_ms,
            watch.timed,
            losses,
            self.held_out,
            self.memory,
            (*watch.grown(), args.hardware.readings()),
            bool(args.warmup) and watch.compiled_late(),
            memory_kinds.updated(self.model, self.optimizer),
            {"node": ranks.node(), "device": args.hardware.name},
            list(args.hardware.other_processes),
        )
        several = args.world_size > 1
        all_ranks = ranks.gather(measurements) if several else [measurements]
        if args.rank == 0:
            self.write(all_ranks)

    def write(self, all_ranks):
        """Append the rows, write the record, and print one line. all_ranks: a Measured of each."""
        counted = own_model_flops.per_unit(self.args, self.call) if self.call else None
        rows, known = rank_results.result(
            self.args, all_ranks, self.model, self.optimizer, self.dataset_facts, counted
        )
        if self.outline and self.args.technique == self.args.base:
            batch_units.remember(self.args, self.outline)
        run_record.write(self.args, rows, known)
        print(progress_bar.last_line(self.args, rows, known["quality"]["reasons"]))


@contextmanager
def _uninterrupted():
    """Delay Ctrl-C until the end of the block."""
    pressed = []
    interrupt = signal.signal(signal.SIGINT, lambda *caught: pressed.append(caught))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if pressed:
        raise KeyboardInterrupt

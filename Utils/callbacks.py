"""Rows of real training runs: callbacks for Hugging Face's Trainer and for Lightning.

    from Utils.callbacks import for_lightning, for_trainer

    Trainer(..., callbacks=[for_trainer("plain")]).train()
    Trainer(..., callbacks=[for_trainer("bf16", base="plain")]).train()

Each run appends rows to a results file, with the clock, memory and quality of the scripts' runs, so
`make table`, `make compare` and `make report` read them. `base` names the run that ratios are over.
A step lasts from the end of the last one to its own end; evaluations and checkpoints are not in it.
"""

import math
import random
import time
from contextlib import suppress

import numpy as np
import torch

from Utils.base.errors import UserError
from Utils.harness import (
    batch_units,
    memory_kinds,
    progress_bar,
    rank_results,
    ranks,
    run_record,
    step_work,
)
from Utils.harness.settings import parse_args
from Utils.harness.step_clock import StepClock
from Utils.scripts import bases

NEEDS = {"tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}  # by the names of TrainingArguments


class Recorder:
    """The rows of one training run that has a loop of its own.

    name: of the run, as a technique's. base: name of the run that its speedup is over; by default
    its own. unit: what a batch holds, tokens or anything else. warmup: first steps, excluded from
    statistics. round, seed: runs of one round are compared with one another. results_file: a path.
    """

    def __init__(
        self, name, base=None, unit="samples", warmup=5, round=0, seed=0, results_file="results.csv"
    ):
        self.name, self.base, self.unit, self.warmup = name, base or name, unit, warmup
        self.flags = [f"--warmup={warmup}", f"--round={round}", f"--seed={seed}"]
        self.flags += [f"--results-file={results_file}", "--seq-len=1"]
        self.args = None  # until the first step, and on all ranks but the first

    def begin(self, model, optimizer, device, steps, batch=None, parts=1, compiled=False, needs=()):
        """Start the clock.

        device: torch.device. steps: of the run at most. batch: one of a process, or None where it
            cannot be known. parts: batches of a process that make a step. compiled: True where the
            model is. needs: as of a script, for the precision of the products.
        """
        here = ranks.from_environment()
        if here.rank:
            return
        flags = [*self.flags, f"--steps={max(steps, self.warmup + 1)}", f"--device={device}"]
        flags.append(f"--batch-size={here.world_size}")
        self.args = args = parse_args("", flags, self.name)
        args.base, args.unit, args.needs = self.base, self.unit, needs
        args.owns = [bases.OWN_MODEL, bases.OWN_DATA]
        number, args.seq_len = batch_units.size(batch, self.unit)
        if not number:
            args.notes.append(f"its batches are not known, so its {self.unit} are not counted")
        args.batch_size = args.requested_batch_size = max(1, number) * parts * args.world_size
        self.model, self.optimizer = model, optimizer
        self.call = None if compiled or here.world_size > 1 else step_work.FirstCall(model)
        self.losses, self.data_ms, self.watch = [], [], StepClock(args.hardware)
        self.running = False
        args.hardware.reset_peak_memory()
        self.resume()

    def resume(self):
        """Let the clock run, from here or from the end of the last step."""
        if self.args is None or self.running:
            return
        if len(self.data_ms) >= self.warmup:
            self.watch.count()
        self.watch.start()
        self.running, self.ended = True, time.perf_counter()

    def loaded(self):
        """Note that the batch of a step is there."""
        if self.args is not None:
            self.waited = (time.perf_counter() - self.ended) * 1e3

    def step(self, loss=math.nan):
        """Mark the end of a step. loss: a number, or NaN where it is not known, or not yet."""
        if self.args is None:
            return
        if len(self.data_ms) + 1 == self.warmup:  # the next step is timed
            self.watch.count()
        self.data_ms.append(self.waited)
        self.losses.append(loss)
        self.watch.step(timed=len(self.data_ms) > self.warmup)
        self.ended = time.perf_counter()

    def log(self, loss):
        """Record the loss of the last step."""
        if self.args is not None and self.losses:
            self.losses[-1] = loss

    def pause(self):
        """Stop the clock: what follows is no part of a step."""
        if self.args is not None and self.running:
            self.watch.stop()
            self.running = False

    def end(self):
        """Append the rows, write the record, and print one line. Raises UserError."""
        if self.args is None:
            return
        self.pause()
        args, watch = self.args, self.watch
        if not any(watch.timed):
            raise UserError(f"{self.name}: no step after the warm-up of {self.warmup}")
        known = [loss if math.isfinite(loss) else 0.0 for loss in map(float, self.losses)]
        counters_before, counters_after = watch.counter_sums()
        one = rank_results.RankResult(
            step_ms=watch.step_ms(),
            data_ms=self.data_ms,
            timed=watch.timed,
            losses=known,
            held_out_loss=None,
            memory=memory_kinds.memory(args.hardware, self.model, self.optimizer, None),
            counters_before=counters_before,
            counters_after=counters_after,
            readings=args.hardware.readings(),
            compiled_late=bool(self.warmup) and watch.compiled_late(),
            updated=memory_kinds.updated(self.model, self.optimizer),
            node=ranks.node(),
            device=args.hardware.name,
            other_processes=list(args.hardware.other_processes),
        )
        rate = step_work.flops_per_unit(args, self.call) if self.call else None
        rows, facts = rank_results.combine(args, [one], self.model, self.optimizer, {}, rate)
        for row, loss in zip(rows, self.losses, strict=True):
            row["loss"] = None if math.isnan(loss) else float(loss)
        run_record.write(args, rows, facts)
        print(progress_bar.last_line(args, rows, facts["quality"]["reasons"]))


def for_trainer(name, **options):
    """Return a callback of Hugging Face's Trainer. Arguments as of Recorder.

    A loss is recorded where the Trainer logs one: logging_steps=1 records all.
    """
    from transformers import TrainerCallback  # here: optional, and seconds

    recorder = Recorder(name, **options)

    class Rows(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, optimizer=None, **more):
            batch = _first_batch(more.get("train_dataloader"), args.train_batch_size)
            whole = model, getattr(optimizer, "optimizer", optimizer), args.device
            parts, compiled = args.gradient_accumulation_steps, args.torch_compile
            needs = [need for need, used in NEEDS.items() if getattr(args, used, None)]
            recorder.begin(*whole, state.max_steps, batch, parts, compiled, needs)

        def on_step_begin(self, args, state, control, **parts):
            recorder.resume()
            recorder.loaded()

        def on_step_end(self, args, state, control, **parts):
            recorder.step()
            if control.should_evaluate or control.should_save:
                recorder.pause()

        def on_log(self, args, state, control, logs=None, **parts):
            if "loss" in (logs or {}):
                recorder.log(float(logs["loss"]))

        def on_train_end(self, args, state, control, **parts):
            recorder.end()

    return Rows()


def for_lightning(name, **options):
    """Return a callback of Lightning's Trainer. Arguments as of Recorder."""
    from lightning.pytorch import Callback  # here: optional, and seconds

    recorder = Recorder(name, **options)

    class Rows(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if not trainer.global_step and recorder.args is None:
                steps = trainer.estimated_stepping_batches
                steps = int(steps) if math.isfinite(steps) and steps > 0 else 0
                parts = trainer.accumulate_grad_batches
                kind = str(trainer.precision).partition("-")[0]
                needs = {"bf16": ["bfloat16"], "16": ["float16"]}.get(kind, [])
                whole = module, trainer.optimizers, module.device
                recorder.begin(*whole, steps, batch, parts, needs=needs)
                self.steps = trainer.global_step
            recorder.resume()
            recorder.loaded()

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == self.steps:
                return  # one of several batches of a step
            self.steps = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            recorder.step(math.nan if loss is None else loss.detach())

        def on_validation_start(self, trainer, module):
            recorder.pause()

        def on_train_end(self, trainer, module):
            recorder.end()

    return Rows()


def _first_batch(loader, size):
    """Return the first batch of a loader as it would be in order, or None. size: its examples.

    It is made beside the loader, whose random numbers stay as they are.
    """
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    batch = None
    with suppress(Exception):  # an endless data set, or one that workers alone can read
        items = range(min(size, len(loader.dataset)))
        batch = loader.collate_fn([loader.dataset[n] for n in items])
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
    return batch

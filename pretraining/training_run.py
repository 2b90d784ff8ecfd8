"""One training run: its progress, its figures and its checkpoints."""

import math
import signal
import sys
import time

import torch

from pretraining import checkpoints, export
from pretraining.history import History
from pretraining.sample import sample
from Utils.base import files
from Utils.base.errors import UserError
from Utils.base.progress_display import ProgressDisplay
from Utils.base.units import MIB

FORM = "{desc} {bar} {n_fmt}/{total_fmt} {postfix} [{elapsed}]"


class Interrupted(Exception):
    """Ctrl-C or SIGTERM between two steps. The run has been saved."""

    def __init__(self, signum, step):
        super().__init__(f"stopped by {signal.Signals(signum).name} after step {step}")
        self.signum = signum


class Run:
    """The bookkeeping around the loop of train.py. A resumed run begins with its last checkpoint.

    model and optimizer may be compiled or wrapped. batches: TokenBatches. scaler: the GradScaler
    of a run in float16. Only rank 0 writes files. Raises UserError if the checkpoint does not fit
    the model or the corpus.
    """

    def __init__(self, args, model, optimizer, batches, scaler=None):
        self.args = args
        self.optimizer = optimizer
        self.scaler = scaler
        self.token_batches = batches
        self.model, self.parallel = _unwrapped(model)
        self.folder = args.folder / "checkpoints"

        # A signal asks for the end after the step that is under way.
        self.signal_received = None
        self.handlers = {n: signal.signal(n, self._stop) for n in (signal.SIGINT, signal.SIGTERM)}
        self.stop_signal = None  # agreed on by all ranks

        # Progress, which a checkpoint restores.
        self.trained = 0  # steps
        self.seconds = 0.0  # spent in earlier sessions
        self.best = math.inf  # lowest validation loss, nats
        self.saved_step = None
        self.validated_step = None
        self.validation = None  # loss at validated_step, nats

        # Figures of a step: on a GPU they are copied to the host while the next step is queued.
        self.losses = None
        self.figures = None
        self.copied = torch.cuda.Event() if args.device.type == "cuda" else None

        self.history = History(args.folder / "training.csv") if args.rank == 0 else None
        if args.resumes:
            self._load()
        if self.history:
            self.history.cut(self.trained)
        self.start = self.trained
        self.progress = Progress(
            args.model,
            args.steps,
            FORM,
            is_hidden=args.rank != 0,
            initial=self.start,
            postfix="first step",
        )
        self.began = self.clock = time.perf_counter()

    # What the loop calls, in this order -----------------------------------------------------------

    def steps(self):
        """Yield the remaining steps, and save the run between two of them when it is due.

        It is saved at intervals, after the best validation so far, and before it stops.
        """
        for step in range(self.start, self.args.steps):
            yield step

            is_best = self.validated_step == self.trained and self.validation == self.best
            if is_best or self.stop_signal or self.trained % self.args.checkpoint_every == 0:
                self._save()

            if self.stop_signal:
                if self.parallel is not None:
                    torch.distributed.barrier()  # the first rank to end would end the others
                self.progress.close()
                raise Interrupted(self.stop_signal, self.trained)

    def batches(self, step):
        """Yield this rank's batches of a step; gradients are exchanged in the last one only."""
        for n, batch in enumerate(self.token_batches.of(step), 1):
            if self.parallel is not None:
                self.parallel.require_backward_grad_sync = n == self.args.accumulation
            yield batch

    def add(self, loss):
        """Add the loss of a batch to the sum of its step, which stays on the device."""
        self.losses = loss.float() if self.losses is None else self.losses + loss

    def log(self, step, gradient_norm):
        """Record a step's loss and gradient norm.

        On a GPU they are read when the next step is queued, so that the device does not wait for
        the host.
        """
        self._read_figures()
        loss = self.losses / self.args.accumulation
        self.losses = None

        # A rank that received a signal tells the others in the same exchange.
        stop = torch.tensor(float(self.signal_received is not None), device=loss.device)
        figures = self._mean(torch.stack([loss, gradient_norm.float(), stop]))
        self.figures = figures.to("cpu", non_blocking=self.copied is not None)
        self.trained = step + 1
        if self.copied:
            self.copied.record()
        else:
            self._read_figures()

    def validates_after(self, step):
        return (step + 1) % self.args.validate_every == 0 or step + 1 == self.args.steps

    def validate(self, losses):
        """Record the mean loss of the held-out batches in the row of the last step."""
        self._read_figures()
        losses = torch.stack([loss.float() for loss in losses])
        mean_loss = self._mean(losses.mean()).item()
        self.validated_step = self.trained
        self.validation = mean_loss
        self.best = min(self.best, mean_loss)

        if self.history:
            perplexity = _perplexity(mean_loss)
            self.history.amend(validation_loss=mean_loss, validation_perplexity=perplexity)
            self.progress.validation = mean_loss
            message = f"validation loss {mean_loss:.4f} nats, perplexity {perplexity:,.1f}"
            self.progress.say(f"  step {self.trained}: {message}")

        self.clock = time.perf_counter()  # no step took this time

    def finish(self):
        """Save the last step, export the weights, and write a sample and the curves."""
        args = self.args
        self._save()
        self.progress.close()
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)
        if args.rank:
            return

        from pretraining import curves  # noqa: PLC0415  (matplotlib takes seconds)

        weights = export.gpt2_weights(self.model.state_dict())
        export.write(args.folder / "model", weights, args.config)
        text = sample(self.model, args.seed)
        files.write(args.folder / "sample.txt", f"{text}\n")
        curves.draw(args.folder)

        best = checkpoints.best(checkpoints.available(self.folder))
        lowest = f"{best.facts['validation_loss']:.4f} at step {best.step}"
        print(f"\n{text}\n", file=sys.stderr)
        print(f"{args.folder}: {self.trained} steps, lowest validation loss {lowest}")
        print("  kept there: model/, checkpoints/, training.csv, loss.png, sample.txt, loop.py")
        print("next: make train RESUME=1 STEPS=N")

    def _stop(self, signum, frame):
        """Ask for the end after this step; the second time the signal has its usual effect."""
        self.signal_received = signum
        signal.signal(signum, self.handlers[signum])

    def _mean(self, tensor):
        """Return the mean of a tensor over all ranks."""
        if self.parallel is not None:
            torch.distributed.all_reduce(tensor)
            tensor = tensor / self.args.world_size
        return tensor

    def _read_figures(self):
        """Wait for the figures of the last step, if they have not been read, and log them."""
        if self.figures is None:
            return
        if self.copied:
            self.copied.synchronize()
        loss, norm, stop = self.figures.tolist()
        self.figures = None
        now = time.perf_counter()

        if not math.isfinite(loss):
            problem = f"step {self.trained}: the loss is {loss}, and nothing was saved since"
            raise UserError(problem, "begin another run with a smaller LEARNING_RATE")
        if stop:
            self.stop_signal = self.signal_received or signal.SIGTERM
        if self.history:
            self._log_row(loss, norm, now)

    def _log_row(self, loss, norm, now):
        """Append the row of the last step to the history and show it."""
        args = self.args
        step_s = now - self.clock
        self.clock = now
        session_s = now - self.began
        mean_step_s = session_s / (self.trained - self.start)
        peak_bytes = args.hardware.peak_memory_mib() * MIB

        row = {
            "step": self.trained,
            "tokens": self.trained * args.tokens_per_step,
            "epoch": round(self.token_batches.epoch(self.trained), 6),
            "training_loss": loss,
            "training_perplexity": _perplexity(loss),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "gradient_norm": norm,
            "tokens_per_second": round(args.tokens_per_step / step_s, 1),
            "memory_share": round(peak_bytes / args.hardware.memory_bytes, 4),
            "seconds": round(self.seconds + session_s, 3),
            "hours_left": round(mean_step_s * (args.steps - self.trained) / 3600, 4),
        }
        self.history.log(**row)
        self.progress.show(row)

    def _save(self):
        """Write a checkpoint: everything that the next step depends on, and facts of the run."""
        self._read_figures()
        if self.args.rank or self.saved_step == self.trained:
            return

        self.history.flush(to_disk=True)
        validation = self.validation if self.validated_step == self.trained else None
        facts = {
            "model": self.args.model,
            "validation_loss": validation,
            "corpus": self.token_batches.corpus,
            "best": self.best if math.isfinite(self.best) else None,
            "seconds": self.seconds + time.perf_counter() - self.began,
        }
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler and self.scaler.state_dict(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        checkpoints.save(self.folder, self.trained, state, facts)
        self.saved_step = self.trained
        self.clock = time.perf_counter()

    def _load(self):
        """Continue from the last checkpoint, if one was written."""
        written = checkpoints.available(self.folder)
        if not written:
            return  # killed before the first was written
        last = written[-1]

        corpus = self.token_batches.corpus
        if last.facts["corpus"] != corpus:
            now = f"{self.args.dataset} is {corpus} now: its text has changed since"
            raise UserError(f"{last.state}: was trained on {last.facts['corpus']}, and {now}")

        state = checkpoints.load(last)
        with checkpoints.of_this_program(last.state):
            checkpoints.load_weights(self.model, state["model"], last.state)
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scaler:
                self.scaler.load_state_dict(state["scaler"])
            torch.set_rng_state(state["random"])
            if len(state["random_cuda"]) == torch.cuda.device_count() > 0:
                torch.cuda.set_rng_state_all(state["random_cuda"])

        self.trained = self.saved_step = last.step
        self.seconds = last.facts["seconds"]
        self.best = math.inf if last.facts["best"] is None else last.facts["best"]


class Progress(ProgressDisplay):
    """Display of a row of the history now and then, and the last validation loss, in nats."""

    validation = None

    def show(self, row):
        if not self.is_due():
            return

        text = (
            f"loss {row['training_loss']:.3f}  {row['tokens_per_second']:,.0f} tokens/s  "
            f"epoch {row['epoch']:.2f}  {row['hours_left']:.2f} h left  "
            f"memory {row['memory_share']:.0%}"
        )
        if self.validation is not None:
            text = f"validation {self.validation:.3f}  {text}"
        self.show_steps(row["step"], text)


def _unwrapped(model):
    """Return (the GPT itself, the DistributedDataParallel around it or None)."""
    parallel = None
    while True:
        if hasattr(model, "_orig_mod"):  # compiled
            model = model._orig_mod
        elif isinstance(model, torch.nn.parallel.DistributedDataParallel):
            parallel, model = model, model.module
        else:
            return model, parallel


def _perplexity(loss):
    return math.exp(loss) if loss < 700 else math.inf

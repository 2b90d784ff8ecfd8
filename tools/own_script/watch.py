"""A training script as torch sees it: its optimizers and models, losses, batches and rare events.

Functions of torch are replaced before the script begins. They stay replaced, as restoring one could
make torch.compile compile again.
"""

import os
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import torch
from torch.utils._pytree import tree_iter
from torch.utils.data import dataloader

from tools.own_script.models import Models, parameters_of
from tools.own_script.optimizer_steps import OptimizerSteps
from tools.own_script.replaced import replace, unwatched
from Utils.base.errors import first_line

TORCH = os.path.dirname(torch.__file__) + os.sep


@dataclass
class Iteration:
    """One training iteration.

    losses: scalars that backward was called on, before scaling. samples: number of samples in the
    batches of DataLoaders. data_s: seconds of waiting for them. events: other things that happened,
    such as eval().
    """

    losses: list = field(default_factory=list)
    samples: int = 0
    data_s: float = 0.0
    events: set = field(default_factory=set)


class Watch:
    """Observes a script in the thread that creates the Watch.

    begins: called before each model call, backward and step. ended: called with each Iteration.
    folder: the script's. inspects: listen to modules without a switch, too. switches: those to
    enable. failures: why a subject is not measured. unscaled: by id of a scaled loss, it and the
    loss.
    """

    observer = None
    loss_scale = None  # the switch of float16
    ended_iterations = 0
    backwards = 0
    in_backward = False  # calls in it repeat parts of the forward
    losses_before_step = 0
    used_closure = False
    own_scaler = False
    own_seed = None

    def __init__(self, spec, begins, ended):
        self.folder = spec.folder
        self.inspects = spec.inspects
        self.begins = begins
        self.ended = ended
        self.switches = []
        self.failures = {}
        self.thread = threading.get_ident()

        self.iteration = Iteration()
        self.unscaled = {}
        self.steps = OptimizerSteps(self)
        self.models = Models(self, spec.inspection.methods)

        replace(torch.autograd, "backward", self._backward)
        self.after("losses", torch.amp.GradScaler, "scale", self._scaled)
        iterators = dataloader._BaseDataLoaderIter
        replace(iterators, "__next__", self._next_batch)
        self.after("samples", iterators, "_next_index", self._indexed)
        self.after("samples", iterators, "_reset", self._epoch_begins)
        self.after("validations", torch.nn.Module, "train", self._mode_set)
        for mode in (torch.no_grad, torch.inference_mode):
            self.after("validations", mode, "__enter__", self._gradients_off)
        self.after("seeds", torch, "manual_seed", self._seeded)

    def after(self, subject, owner, name, observer):
        """Call an observer, with the result and the arguments, after each call of a function."""

        def call(usual, *args, **kwargs):
            result = usual(*args, **kwargs)
            self.observe(subject, observer, result, *args, **kwargs)
            return result

        replace(owner, name, call)

    def observe(self, subject, function, *args, **kwargs):
        """Call a function that only observes.

        After an error, which is not the script's, the subject is not observed any more.
        """
        try:
            if subject not in self.failures:
                with unwatched:
                    function(*args, **kwargs)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            self.failures[subject] = f"{subject} not measured: {reason}"

    def groups(self):
        return [group for optimizer in self.steps.optimizers for group in optimizer.param_groups]

    def parameters(self):
        """Return the parameters of all optimizers."""
        return parameters_of(self.groups())

    def end_iteration(self):
        """Begin the next iteration, and hand over the one that has ended."""
        iteration = self.iteration
        self.iteration = Iteration()
        if self.loss_scale:
            self.loss_scale.iteration_ended()
        self.unscaled.clear()
        self.ended_iterations += 1
        self.models.iteration_ended()
        self.ended(iteration)

    def note(self, event):
        """Note an event of this iteration. event: hashable, and the same value each time.

        Iterations with a rare one, such as validation, are not timed.
        """
        if not self.steps.running and threading.get_ident() == self.thread:
            self.iteration.events.add(event)

    def _backward(self, usual, tensors, *args, **kwargs):
        if self.in_backward:
            return usual(tensors, *args, **kwargs)

        self.backwards += 1
        self.begins()
        is_closure = bool(self.steps.running)
        self.used_closure |= is_closure
        losses = [tensors] if torch.is_tensor(tensors) else list(tensors)
        # An optimizer may call its closure several times; then the first loss counts.
        if not is_closure or len(self.iteration.losses) == self.losses_before_step:
            self.observe("losses", self._record, losses)

        if self.loss_scale:
            tensors = self.loss_scale.scaled(losses)
        self.in_backward = True
        try:
            return usual(tensors, *args, **kwargs)
        finally:
            self.in_backward = False
            if self.loss_scale:
                self.loss_scale.unscale()
            if self.observer:
                self.observe("gradients", self.observer.backward_ended)

    def _record(self, losses):
        """Record the losses that backward is called on, before any scaling."""
        for loss in losses:
            _, loss = self.unscaled.get(id(loss), (None, loss))
            # Otherwise it is an output with its gradient.
            if torch.is_tensor(loss) and loss.numel() == 1 and not loss.is_complex():
                self.iteration.losses.append(loss.detach().clone())

    def _scaled(self, scaled, scaler, outputs):
        if scaler.is_enabled() and torch.is_tensor(outputs):
            self.own_scaler = True
            self.unscaled[id(scaled)] = scaled, outputs

    def _indexed(self, index, iterator):
        """Keep the length of an index list until its batch is yielded, if it has one."""
        is_map = iterator._dataset_kind == dataloader._DatasetKind.Map
        if is_map and iterator._auto_collation and hasattr(index, "__len__"):
            iterator.__dict__.setdefault("lengths_to_come", deque()).append(len(index))

    def _epoch_begins(self, result, iterator, *args):
        iterator.__dict__.pop("lengths_to_come", None)  # left by an epoch that ended early

    def _next_batch(self, usual, iterator):
        start = time.perf_counter()
        batch = usual(iterator)
        self.iteration.data_s += time.perf_counter() - start
        self.observe("samples", self._count_samples, iterator, batch)
        return batch

    def _count_samples(self, iterator, batch):
        """Add the samples of a batch: the indices that it was fetched with, or its first length."""
        lengths = getattr(iterator, "lengths_to_come", ())
        samples = lengths.popleft() if lengths else 0
        if not samples:
            tensors = filter(torch.is_tensor, tree_iter(batch))
            samples = next((tensor.shape[0] for tensor in tensors if tensor.ndim), 0)
        if torch.is_grad_enabled():
            self.iteration.samples += samples

    def _mode_set(self, result, module, mode=True):
        if not mode:
            self.note("eval()")

    def _gradients_off(self, *args):
        """Note the line that turns gradients off, unless it is torch's."""
        frame = sys._getframe(4)
        if frame.f_code.co_name == "decorate_context":
            frame = frame.f_back
        if not frame.f_code.co_filename.startswith(TORCH):
            self.note((frame.f_code, frame.f_lineno))

    def _seeded(self, generator, seed):
        self.own_seed = int(seed)

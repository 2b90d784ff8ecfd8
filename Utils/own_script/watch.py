"""A training script as torch sees it: optimizers, losses, batches and models.

Functions of torch are replaced before the script begins and stay so: taking a replacement off could
let torch.compile compile again.
"""

import functools
import os
import sys
import threading
import time
from dataclasses import dataclass, field

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from Utils.own_script import model_calls, user_code
from Utils.own_script.iterations import Iterations
from Utils.own_script.model_calls import ModelCalls

LISTENED_ITERATIONS = 3
TORCH = os.path.dirname(torch.__file__) + os.sep


@dataclass
class Iteration:
    """One training iteration.

    losses: what backward was called on, before scaling, 0-d tensors. samples: in the batches that a
    DataLoader gave for training. data_s: seconds waited for them. events: what else happened.
    """

    losses: list = field(default_factory=list)
    samples: int = 0
    data_s: float = 0.0
    events: set = field(default_factory=set)


@dataclass(frozen=True)
class Model:
    """A model of the script. name: its class, with the method by which it is called. site: of its
    first call, file:line."""

    module: torch.nn.Module
    name: str
    site: str


class Watch:
    """Watches a script in the thread that makes it.

    begins: function called before the first model call or backward of a training script.
    ended: function of each Iteration, at its end. throw: function of each Model and the method by
    which it is called, before its first call; None where nobody asks for models. all_calls: listen
    to a model's children too, for a look.
    """

    def __init__(self, folder, begins, ended, throw=None, all_calls=False):
        self.folder = folder
        self.begins = begins
        self.ended = ended
        self.throw = throw
        self.all_calls = all_calls
        self.thread = threading.get_ident()
        self.iterations = Iterations()
        self.iteration = Iteration()
        self.ended_iterations = 0
        self.listens_until = LISTENED_ITERATIONS
        self.optimizers = {}  # by id
        self.optimizer_sites = {}  # by id: (class, file:line)
        self.models = []
        self.calls = ModelCalls(self._called_first)
        self.stepping = []  # optimizers whose step runs, a wrapper before what it wraps
        self.unscaled = {}  # by id of a scaled loss: it, and the loss
        self.calls_per_step = 1  # of one model, in the last iteration that was listened to
        self.loss_scale = None  # the switch of float16
        self.own_seed = None
        self.our_modules = ()  # whose frames torch.compile skips
        self.own_scaler = False
        self.used_closure = False

    def install(self):
        """Replace functions of torch."""
        torch_optimizer.register_optimizer_step_pre_hook(self._step_begins)
        torch_optimizer.register_optimizer_step_post_hook(self._step_ended)
        replace(torch.optim.Optimizer, "__init__", self._optimizer_made)
        replace(torch.autograd, "backward", self._backward)
        replace(torch.amp.GradScaler, "scale", self._scale)
        replace(torch.amp.GradScaler, "step", self._scaler_step)
        replace(dataloader._BaseDataLoaderIter, "__next__", self._next_batch)
        replace(torch.nn.Module, "train", self._mode_set)
        replace(torch.no_grad, "__enter__", self._gradients_off)
        replace(torch.inference_mode, "__enter__", self._gradients_off)
        replace(torch, "manual_seed", self._seeded)

    def parameters(self):
        """Return the parameters that the optimizers hold."""
        groups = [group for opt in self.optimizers.values() for group in opt.param_groups]
        return [p for group in groups for p in group["params"]]

    def note(self, event):
        """Note that something happened in this iteration. event: hashable, the same each time."""
        if threading.get_ident() == self.thread and not self.stepping:
            self.iteration.events.add(event)

    # Optimizers

    def _optimizer_made(self, usual, optimizer, *args, **kwargs):
        usual(optimizer, *args, **kwargs)
        if threading.get_ident() != self.thread:
            return
        self.optimizers[id(optimizer)] = optimizer
        self.iterations.created(id(optimizer))
        site = user_code.call_site(self.folder)
        self.optimizer_sites[id(optimizer)] = type(optimizer).__name__, site
        user_code.hide_from_dynamo(*self.our_modules)
        self.our_modules = ()
        if self.throw:
            self.calls.listen(self.parameters())
        self.listens_until = self.ended_iterations + LISTENED_ITERATIONS

    def _step_begins(self, optimizer, args, kwargs):
        if threading.get_ident() != self.thread:
            return
        if optimizer in self.stepping:  # it ended by an exception
            del self.stepping[self.stepping.index(optimizer) :]
        self.stepping.append(optimizer)
        if len(self.stepping) == 1:
            self.losses_before_step = len(self.iteration.losses)
            given = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
            self.used_closure |= given is not None
            self.begins()
            if self.loss_scale:
                self.loss_scale.step_begins(optimizer)

    def _step_ended(self, optimizer, args, kwargs):
        if threading.get_ident() != self.thread or optimizer not in self.stepping:
            return
        del self.stepping[self.stepping.index(optimizer) :]
        if self.stepping:
            self.iterations.left_out(id(optimizer))
            return
        if self.loss_scale:
            self.loss_scale.step_ended()
        self._stepped(optimizer)

    def _stepped(self, optimizer):
        self.optimizers[id(optimizer)] = optimizer
        if self.iterations.stepped(id(optimizer)):
            iteration = self.iteration
            self.iteration = Iteration()
            if self.loss_scale:
                self.loss_scale.iteration_ended()
            self.unscaled.clear()
            self.ended_iterations += 1
            self.calls_per_step = max(self.calls.outermost.values(), default=self.calls_per_step)
            self.calls.outermost.clear()
            if self.ended_iterations == self.listens_until:
                self.calls.stop_listening()
            self.ended(iteration)

    # Losses

    def _backward(self, usual, tensors, *args, **kwargs):
        if threading.get_ident() != self.thread or self.calls.in_backward:
            return usual(tensors, *args, **kwargs)
        self.begins()
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        # Of a closure that the optimizer calls several times, the first loss counts.
        if not self.stepping or len(self.iteration.losses) == self.losses_before_step:
            for loss in losses:
                _, loss = self.unscaled.get(id(loss), (None, loss))
                self.iteration.losses.append(loss.detach().clone())
        if self.loss_scale:
            tensors = [self.loss_scale.scaled(loss) for loss in losses]
        self.calls.in_backward = True
        try:
            return usual(tensors, *args, **kwargs)
        finally:
            self.calls.in_backward = False
            if self.loss_scale:
                self.loss_scale.unscale()

    def _scale(self, usual, scaler, outputs):
        scaled = usual(scaler, outputs)
        if scaler.is_enabled() and isinstance(outputs, torch.Tensor):
            self.own_scaler = True
            self.unscaled[id(scaled)] = scaled, outputs
        return scaled

    def _scaler_step(self, usual, scaler, optimizer, *args, **kwargs):
        ended = self.ended_iterations
        totals = dict(self.iterations.totals)
        result = usual(scaler, optimizer, *args, **kwargs)
        skipped = ended == self.ended_iterations and totals == self.iterations.totals
        if skipped and threading.get_ident() == self.thread:
            self._stepped(optimizer)
        return result

    # Batches, and what does not happen in each iteration

    def _next_batch(self, usual, iterator):
        start = time.perf_counter()
        batch = usual(iterator)
        if threading.get_ident() != self.thread:
            return batch
        self.iteration.data_s += time.perf_counter() - start
        if torch.is_grad_enabled():
            tensors = (t for t in tree_leaves(batch) if isinstance(t, torch.Tensor) and t.dim())
            first = next(tensors, None)
            self.iteration.samples += 0 if first is None else len(first)
        else:
            self.note("a batch without gradients")
        return batch

    def _mode_set(self, usual, module, mode=True):
        if not mode:
            self.note("eval()")
        return usual(module, mode)

    def _gradients_off(self, usual, context):
        frame = sys._getframe(2)
        if frame.f_code.co_name == "decorate_context":
            frame = frame.f_back
        if not frame.f_code.co_filename.startswith(TORCH):
            self.note((frame.f_code, frame.f_lineno))
        return usual(context)

    def _seeded(self, usual, seed):
        self.own_seed = int(seed)
        return usual(seed)

    # Models

    def _called_first(self, module):
        """Throw the switches at a module that is called outermost."""
        self.begins()
        held = {id(p) for p in module.parameters()}
        whole = False
        partly_held = []
        for optimizer in self.optimizers.values():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            inside = sum(id(p) in held for p in parameters)
            whole |= 0 < inside == len(parameters)
            if 0 < inside < len(parameters):
                partly_held += parameters
        if whole and not self.all_calls:
            self.calls.stop_listening(module)  # so that torch.compile does not see it
        if whole or not partly_held:
            self._model(module, type(getattr(module, "_orig_mod", module)).__name__)
            return
        holder = model_calls.holder_on_the_stack(module, partly_held)
        if holder is None:
            self._model(module, type(getattr(module, "_orig_mod", module)).__name__)
        elif all(model.module is not holder[0] for model in self.models):
            self._model(holder[0], f"{type(holder[0]).__name__}.{holder[1]}", method=holder[1])

    def _model(self, module, name, method=None):
        model = Model(module, name, user_code.call_site(self.folder))
        self.models.append(model)
        self.throw(model, method)


def replace(owner, name, function):
    """Replace an attribute by a function that gets the usual one as its first argument."""
    usual = getattr(owner, name)

    @functools.wraps(usual)
    def replaced(*args, **kwargs):
        return function(usual, *args, **kwargs)

    setattr(owner, name, replaced)

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
from torch.utils._pytree import tree_iter
from torch.utils.data import dataloader

from tools.own_script import model_calls, user_code

LISTENED_ITERATIONS = 3
TORCH = os.path.dirname(torch.__file__) + os.sep


class Iterations:
    """Tells which optimizer step ends an iteration: one of the optimizer that steps most rarely.

    A GAN has two optimizers and one iteration for a step of each, or for five steps of one and one
    of the other. The period of an optimizer is the number of steps of others between two of its
    own. One that has not stepped for three of its periods does not count until it steps again.

    ending: key of the optimizer whose steps end iterations, None before the first. changes: how
    often it was replaced.
    """

    def __init__(self):
        self.ending = None
        self.changes = 0
        self.steps = 0  # of all optimizers
        self.since = {}  # by key: steps of others since its last
        self.gaps = {}  # by key: the last two such numbers between its steps; none before the first

    def created(self, key):
        """Count an optimizer from here on."""
        self.since.setdefault(key, 0)
        self.gaps.setdefault(key, [])

    def left_out(self, key):
        """Count an optimizer no more, since another one steps it."""
        self.since.pop(key, None)
        self.gaps.pop(key, None)

    def stepped(self, key):
        """Note a step of an optimizer. Return whether it ends an iteration."""
        self.steps += 1
        if self.ending == key and self.since.keys() == {key}:  # the only one
            return True
        self.created(key)
        self.gaps[key] = [*self.gaps[key][-1:], self.since[key]]
        self.since = {name: since + 1 for name, since in self.since.items()} | {key: 0}
        periods = {name: max([1, *gaps]) for name, gaps in self.gaps.items()}
        active = [name for name in periods if self.since[name] < 3 * periods[name]]
        new = [name for name in active if not self.gaps[name]]
        longest = max(periods[name] for name in active)
        rarest = new or [name for name in active if periods[name] == longest]
        if self.ending not in rarest and (self.ending is not None or key in rarest):
            self.changes += self.ending is not None
            self.ending = key if key in rarest else rarest[-1]
        return key == self.ending


@dataclass
class Iteration:
    """One training iteration.

    losses: scalars that backward was called on, before scaling. samples: in the batches of
    DataLoaders. data_s: seconds waited for them. events: what else happened.
    """

    losses: list = field(default_factory=list)
    samples: int = 0
    data_s: float = 0.0
    events: set = field(default_factory=set)


@dataclass(frozen=True)
class Model:
    """A model. name: its class, with the method by which it is called. site: of its first call."""

    module: torch.nn.Module
    name: str
    site: str


class Watch:
    """Watches a script in the thread that makes it.

    begins: function called before each model call, backward and optimizer step. ended: function of
    each Iteration, at its end. looks: listen to all modules, for a Look. switches: to be thrown.
    methods: pairs of names, class and method, by which a look saw models being called.
    """

    def __init__(self, folder, begins, ended, looks=False, methods=()):
        self.folder = folder
        self.begins = begins
        self.ended = ended
        self.looks = looks
        self.methods = methods
        self.switches = []
        self.thread = threading.get_ident()
        self.iterations = Iterations()
        self.iteration = Iteration()
        self.ended_iterations = 0
        self.listens_until = LISTENED_ITERATIONS
        self.optimizers = {}  # by id
        self.optimizer_sites = {}  # by id: (class, file:line)
        self.models = []
        self.calls = model_calls.ModelCalls(self._called_first)
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

    def groups(self):
        return [group for opt in self.optimizers.values() for group in opt.param_groups]

    def parameters(self):
        """Return the parameters that the optimizers hold."""
        return [p for group in self.groups() for p in group["params"]]

    def note(self, event):
        """Note that something happened in this iteration. event: hashable, the same each time."""
        if not self.stepping and threading.get_ident() == self.thread:
            self.iteration.events.add(event)

    def _optimizer_made(self, usual, optimizer, *args, **kwargs):
        usual(optimizer, *args, **kwargs)
        self.optimizers[id(optimizer)] = optimizer
        self.iterations.created(id(optimizer))
        site = user_code.call_site(self.folder)
        self.optimizer_sites[id(optimizer)] = type(optimizer).__name__, site
        user_code.hide_from_dynamo(self.our_modules)
        self.our_modules = ()
        if self.switches or self.looks:
            self.calls.listen(self.parameters())
            for module in self.calls.listening.values():
                for name, method in self.methods:
                    if type(module).__name__ == name and hasattr(module, method):
                        InPlace(module, method, functools.partial(self._method, module, method))
        for switch in self.switches:
            switch.optimizer_made(optimizer)
        self.listens_until = self.ended_iterations + LISTENED_ITERATIONS

    def _step_begins(self, optimizer, args, kwargs):
        if threading.get_ident() != self.thread:
            return
        self.stepping.append(optimizer)
        if len(self.stepping) == 1:
            self.losses_before_step = len(self.iteration.losses)
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

    def _backward(self, usual, tensors, *args, **kwargs):
        if self.calls.in_backward:
            return usual(tensors, *args, **kwargs)
        self.begins()
        self.used_closure |= bool(self.stepping)
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        # Of a closure that the optimizer calls several times, the first loss counts.
        if not self.stepping or len(self.iteration.losses) == self.losses_before_step:
            for loss in losses:
                _, loss = self.unscaled.get(id(loss), (None, loss))
                if loss.numel() == 1:  # else an output, whose gradient is given
                    value = loss.item() if loss.is_cpu else loss.detach().clone()
                    self.iteration.losses.append(value)
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
        steps = self.iterations.steps
        result = usual(scaler, optimizer, *args, **kwargs)
        if self.iterations.steps == steps:  # it was skipped
            self._stepped(optimizer)
        return result

    def _next_batch(self, usual, iterator):
        start = time.perf_counter()
        batch = usual(iterator)
        self.iteration.data_s += time.perf_counter() - start
        if torch.is_grad_enabled():
            for leaf in tree_iter(batch):
                if isinstance(leaf, torch.Tensor) and leaf.ndim:
                    self.iteration.samples += leaf.shape[0]
                    break
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

    def _called_first(self, module):
        """Throw the switches at a module that is called outermost."""
        self.begins()
        held = {id(p) for p in module.parameters()}
        all_of_one = False
        partly_held = []
        for optimizer in self.optimizers.values():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            inside = sum(id(p) in held for p in parameters)
            all_of_one |= 0 < inside == len(parameters)
            if 0 < inside < len(parameters):
                partly_held += parameters
        if all_of_one and not self.looks:
            self.calls.stop_listening(module)  # so that torch.compile does not see it
        method = None
        if partly_held and not all_of_one:
            module, method = model_calls.holder_on_the_stack(module, partly_held)
        self._add_model(module, method)

    def _method(self, module, method, *args, **kwargs):
        """Throw the switches at a model before its method is called for the first time."""
        delattr(module, method)
        self.begins()
        self._add_model(module, method)
        return getattr(module, method)(*args, **kwargs)

    def _add_model(self, module, method):
        if all(model.module is not module for model in self.models):
            name = f"{type(module).__name__}.{method}"
            if method is None:
                name = type(getattr(module, "_orig_mod", module)).__name__
            self.models.append(Model(module, name, user_code.call_site(self.folder)))
            for switch in self.switches:
                switch.model_called(module, method)


def replace(owner, name, function):
    """Replace an attribute by a function that gets the usual one first; other threads call that."""
    usual = getattr(owner, name)
    thread = threading.get_ident()

    @functools.wraps(usual)
    def replaced(*args, **kwargs):
        if threading.get_ident() != thread:
            return usual(*args, **kwargs)
        return function(usual, *args, **kwargs)

    setattr(owner, name, replaced)


class InPlace:
    """A callable in place of one module's method; its copies and pickles get the usual method."""

    def __init__(self, module, name, function):
        functools.update_wrapper(self, getattr(module, name))
        self.module = module
        self.name = name
        self.function = function
        setattr(module, name, self)

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def __reduce__(self):
        return getattr, (self.module, self.name)  # the module's copy has its class's alone

"""A training script as torch sees it: optimizers, losses, batches and models.

Functions of torch are replaced before the script begins. They stay replaced, as restoring one could
make torch.compile compile again.
"""

import functools
import mmap
import multiprocessing.process
import os
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils._pytree import tree_iter
from torch.utils.data import dataloader

from tools.own_script import insertion_points, model_calls, user_code
from tools.own_script.iterations import Iteration, Iterations
from tools.own_script.unwatched import unwatched
from Utils.base.errors import first_line

LISTENED_ITERATIONS = 3
TORCH = os.path.dirname(torch.__file__) + os.sep


@dataclass(frozen=True)
class Model:
    """A model of the script.

    name: its class, with the method by which it is called. site: file:line of its first call.
    expression: what names it in the script, "" if unknown. made_at: place after the statement that
    makes it. method: by which it is called.
    """

    module: torch.nn.Module
    name: str
    site: str
    expression: str
    made_at: str
    method: str


class Watch:
    """Observes a script in the thread that creates the Watch.

    spec: a dict with folder, of the script, and after a Look methods: pairs of a model's class and
    the method by which it is called. begins: called before each model call, backward and step.
    ended: called with each Iteration. looks: listen to all modules. switches: those to enable.
    """

    def __init__(self, spec, begins, ended, looks=False):
        self.folder = spec["folder"]
        self.methods = spec.get("methods", ())
        self.begins = begins
        self.ended = ended
        self.looks = looks

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
        self.unscaled = {}  # by id of a scaled loss: (scaled loss, loss)
        self.calls_per_step = 1  # of one model, in the last iteration that was observed
        self.loss_scale = None  # the switch of float16
        self.own_seed = None
        self.own_scaler = False
        self.used_closure = False
        self.backwards = 0
        self.failures = {}  # by subject: why it is not measured
        self.process = os.getpid()
        # 1 in a thread, 2 in a process, 3 if processes were started; forks share it.
        self.steps_elsewhere = mmap.mmap(-1, 1)

    def install(self):
        """Replace functions of torch."""
        torch_optimizer.register_optimizer_step_pre_hook(self._step_begins)
        torch_optimizer.register_optimizer_step_post_hook(self._step_ended)
        replace(torch.optim.Optimizer, "__init__", self._optimizer_made)
        replace(torch.autograd, "backward", self._backward)
        replace(torch.amp.GradScaler, "scale", self._scale)
        replace(torch.amp.GradScaler, "step", self._scaler_step)
        replace(dataloader._BaseDataLoaderIter, "__next__", self._next_batch)
        replace(dataloader._BaseDataLoaderIter, "_next_index", self._next_index)
        replace(dataloader._BaseDataLoaderIter, "_reset", self._epoch_begins)
        replace(torch.nn.Module, "train", self._mode_set)
        replace(torch.no_grad, "__enter__", self._gradients_off)
        replace(torch.inference_mode, "__enter__", self._gradients_off)
        replace(torch, "manual_seed", self._seeded)
        replace(multiprocessing.process.BaseProcess, "start", self._process_started)

    def groups(self):
        return [group for opt in self.optimizers.values() for group in opt.param_groups]

    def parameters(self):
        """Return the parameters of all optimizers."""
        return parameters_of(self.groups())

    def observe(self, subject, function, *args):
        """Call a function that only observes.

        After an error, which is not the script's, the subject is not observed any more.
        """
        if subject in self.failures:
            return None
        try:
            with unwatched:
                return function(*args)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            self.failures[subject] = f"{subject} not measured: {reason}"

    def note(self, event):
        """Record an event of this iteration. event: hashable, and the same value each time."""
        if not self.stepping and threading.get_ident() == self.thread:
            self.iteration.events.add(event)

    def _optimizer_made(self, usual, optimizer, *args, **kwargs):
        usual(optimizer, *args, **kwargs)
        if not self.optimizers:
            user_code.hide_from_dynamo()
        self.optimizers[id(optimizer)] = optimizer
        self.iterations.created(id(optimizer))

        site = user_code.call_site(self.folder)
        self.optimizer_sites[id(optimizer)] = type(optimizer).__name__, site

        if self.switches or self.looks:
            self.observe("models", self._listen)
        for switch in self.switches:
            switch.optimizer_made(optimizer)
        self.listens_until = self.ended_iterations + LISTENED_ITERATIONS

    def _listen(self):
        """Listen to modules with parameters of optimizers, and to methods that a Look has seen."""
        self.calls.listen(self.parameters())
        for module in self.calls.listening.values():
            for name, method in self.methods:
                if type(module).__name__ == name and hasattr(module, method):
                    InPlace(module, method, functools.partial(self._method, module, method))

    def _steps_here(self):
        """Return whether a step is taken in the watched thread, or in one of its backward's."""
        if os.getpid() != self.process:
            if not self.iterations.steps:  # nor would this process take any
                self.steps_elsewhere[0] = 2
                os._exit(0)
            return False

        is_foreign = isinstance(threading.current_thread(), threading._DummyThread)
        of_backward = is_foreign and self.calls.in_backward
        is_watched = threading.get_ident() == self.thread or of_backward
        if not is_watched:
            self.steps_elsewhere[0] = 1
        return is_watched

    def _step_begins(self, optimizer, args, kwargs):
        if not self._steps_here():
            return
        if self.stepping:  # unless an error has ended that step
            frames = traceback.walk_stack(sys._getframe(1))
            running = {id(frame.f_locals.get("self")) for frame, _ in frames}
            self.stepping = [outer for outer in self.stepping if id(outer) in running]
        self.stepping.append(optimizer)
        if len(self.stepping) == 1:
            self.losses_before_step = len(self.iteration.losses)
            self.begins()
            if self.loss_scale:
                self.loss_scale.step_begins(optimizer)

    def _step_ended(self, optimizer, args, kwargs):
        if optimizer not in self.stepping or not self._steps_here():
            return
        del self.stepping[self.stepping.index(optimizer) :]
        if self.stepping:
            self.iterations.left_out(id(optimizer))
            return
        if self.loss_scale:
            self.loss_scale.step_ended()
        self._stepped(optimizer)

    def _stepped(self, optimizer):
        """Record a step of an outermost optimizer, and end the iteration if it does."""
        self.optimizers[id(optimizer)] = optimizer
        if not self.iterations.stepped(id(optimizer)):
            return

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

        self.backwards += 1
        self.begins()
        self.used_closure |= bool(self.stepping)
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        # An optimizer may call its closure several times; then the first loss counts.
        if not self.stepping or len(self.iteration.losses) == self.losses_before_step:
            self.observe("losses", self._record, losses)

        if self.loss_scale:
            tensors = [self.loss_scale.scaled(loss) for loss in losses]
        self.calls.in_backward = True
        try:
            return usual(tensors, *args, **kwargs)
        finally:
            self.calls.in_backward = False
            if self.loss_scale:
                self.loss_scale.unscale()

    def _record(self, losses):
        """Record the losses that backward is called on."""
        for loss in losses:
            _, loss = self.unscaled.get(id(loss), (None, loss))
            # Otherwise it is an output with its gradient.
            if isinstance(loss, torch.Tensor) and loss.numel() == 1 and not loss.is_complex():
                self.iteration.losses.append(loss.detach().clone())

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

    def _next_index(self, usual, iterator):
        index = usual(iterator)
        self.observe("samples", self._indexed, iterator, index)
        return index

    def _indexed(self, iterator, index):
        """Keep the length of an index list until its batch is yielded, if it has one."""
        is_map = iterator._dataset_kind == dataloader._DatasetKind.Map
        if is_map and iterator._auto_collation and hasattr(index, "__len__"):
            iterator.__dict__.setdefault("lengths_to_come", deque()).append(len(index))

    def _epoch_begins(self, usual, iterator, *args, **kwargs):
        iterator.__dict__.pop("lengths_to_come", None)  # of an epoch that was left early
        usual(iterator, *args, **kwargs)

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
            tensors = (leaf for leaf in tree_iter(batch) if isinstance(leaf, torch.Tensor))
            samples = next((tensor.shape[0] for tensor in tensors if tensor.ndim), 0)
        if torch.is_grad_enabled():
            self.iteration.samples += samples

    def _mode_set(self, usual, module, mode=True):
        if not mode:
            self.note("eval()")
        return usual(module, mode)

    def _gradients_off(self, usual, context):
        self.observe("validations", self._note_line, sys._getframe(2))
        return usual(context)

    def _note_line(self, frame):
        """Note the line of a frame that turns gradients off, unless it is torch's."""
        if frame.f_code.co_name == "decorate_context":
            frame = frame.f_back
        if not frame.f_code.co_filename.startswith(TORCH):
            self.note((frame.f_code, frame.f_lineno))

    def _seeded(self, usual, seed):
        self.own_seed = int(seed)
        return usual(seed)

    def _process_started(self, usual, process):
        self.steps_elsewhere[0] = self.steps_elsewhere[0] or 3
        usual(process)

    def _called_first(self, module):
        """Enable the switches on the model that a first outermost call belongs to.

        That is the module itself if it has all parameters of an optimizer. If it has only some, the
        model is an object around it, whose method is running.
        """
        self.begins()
        ids_in_module = model_calls.ids_of(module.parameters())
        has_all_of_an_optimizer = False
        partly_covered = []
        for optimizer in self.optimizers.values():
            parameters = parameters_of(optimizer.param_groups)
            ids = model_calls.ids_of(parameters)
            if ids and ids <= ids_in_module:
                has_all_of_an_optimizer = True
            elif ids & ids_in_module:
                partly_covered += parameters

        if has_all_of_an_optimizer and not self.looks:
            self.calls.stop_listening(module)  # so that torch.compile does not see the hook
        method = None
        if partly_covered and not has_all_of_an_optimizer:
            module, method = model_calls.holder_on_the_stack(module, partly_covered)
        self._add_model(module, method)

    def _method(self, module, method, *args, **kwargs):
        """Enable the switches on a model before its method is called for the first time."""
        delattr(module, method)
        self.begins()
        self._add_model(module, method)
        return getattr(module, method)(*args, **kwargs)

    def _add_model(self, module, method):
        """Record a model, and enable the switches on it. method: None for its call."""
        if any(model.module is module for model in self.models):
            return

        name = type(getattr(module, "_orig_mod", module)).__name__
        if method:
            name = f"{type(module).__name__}.{method}"
        site = user_code.call_site(self.folder)
        lines = self.observe("lines", insertion_points.after_model, module)
        expression, made_at = lines or ("", "")
        self.models.append(Model(module, name, site, expression, made_at, method or "forward"))
        for switch in self.switches:
            switch.model_called(module, method)


def parameters_of(groups):
    return [p for group in groups for p in group["params"]]


def replace(owner, name, function):
    """Replace an attribute by a function whose first argument is the usual one.

    Other threads still call the usual one, and so do compiled functions and this program.
    """
    usual = getattr(owner, name)
    # torch.compile can read a function without globals that is in none of the files it skips.
    is_compiling = torch.compiler.is_compiling
    get_ident = threading.get_ident
    thread = get_ident()

    @functools.wraps(usual)
    def replaced(*args, **kwargs):
        if is_compiling() or get_ident() != thread or unwatched.depth:
            return usual(*args, **kwargs)
        return function(usual, *args, **kwargs)

    replaced.__code__ = replaced.__code__.replace(co_filename="<replaced>")
    setattr(owner, name, replaced)


class InPlace:
    """A callable that replaces a method of one module; copies and pickles have the usual method."""

    def __init__(self, module, name, function):
        functools.update_wrapper(self, getattr(module, name))
        self.module = module
        self.name = name
        self.function = function
        setattr(module, name, self)

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def __reduce__(self):
        return getattr, (self.module, self.name)  # a copy of the module has its class's method

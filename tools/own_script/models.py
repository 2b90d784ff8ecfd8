"""The models of a script: modules that are called outermost and hold trained parameters.

Calls are observed through a module's attribute `_compiled_call_impl`, which torch calls in place of
its own implementation, leaves out of copies and pickles, and ignores when it compiles. Modules are
observed only in the first iterations.
"""

import gc
import sys
import threading
import traceback
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet, ref

from torch.nn import Module, ModuleList

from tools.own_script.replaced import InPlace
from tools.own_script.user_code import Place, call_place

LISTENED_ITERATIONS = 3  # after an optimizer was made


@dataclass(frozen=True)
class Model:
    """A model of the script.

    module: a weak reference. name: its class, with the method by which it is called. place: that of
    its first call. method: by which it is called.
    """

    module: ref
    name: str
    place: Place | None
    method: str


class Models:
    """Finds the models of a Watch, and enables its switches on each before its first call.

    Calls of modules with trained parameters are told apart by depth: a model's is outermost.

    methods: pairs of a model's class and the method by which it is called, from an inspection.
    """

    depth = 0

    def __init__(self, watch, methods):
        self.watch = watch
        self.methods = methods
        self.seen = []
        self.listens_until = LISTENED_ITERATIONS
        self.listening = WeakSet()

    def optimizer_made(self):
        """Listen to modules with its parameters, and to methods that an inspection has seen."""
        if self.watch.switches or self.watch.inspects or self.watch.observer:
            self.watch.observe("models", self._listen)
        self.listens_until = self.watch.ended_iterations + LISTENED_ITERATIONS

    def _listen(self):
        for module in modules_with(self.watch.parameters()):
            if not isinstance(module._compiled_call_impl, Listened):
                self.listening.add(Listened(module, self))
            for name, method in self.methods:
                if type(module).__name__ == name and hasattr(module, method):
                    InPlace(module, method, partial(self._method, module, method))

    def implementation(self, module):
        """Return what a call of a module runs, but for listening."""
        call = module._compiled_call_impl
        if isinstance(call, Listened):
            call = call.usual
        return call or module._call_impl

    def replace(self, module, function):
        """Let a module's calls run a function, from the next call on, for good."""
        call = module._compiled_call_impl
        if isinstance(call, Listened):
            call.usual = function
        else:
            module.__dict__["_compiled_call_impl"] = function

    def _stop_listening(self, modules):
        """Leave modules as they would be without listening."""
        for module in modules:
            call = module._compiled_call_impl
            if isinstance(call, Listened):
                module.__dict__["_compiled_call_impl"] = call.usual

    def iteration_ended(self):
        if self.watch.ended_iterations == self.listens_until and not self.watch.observer:
            self._stop_listening([listened.module for listened in self.listening])

    def called_first(self, module):
        """Enable the switches on the model that a first outermost call belongs to.

        That is the module itself if it has all parameters of an optimizer. If it has only some, the
        model is an object around it, whose method is running.
        """
        self.watch.begins()
        in_module = {*module.parameters()}
        has_all_of_an_optimizer = False
        partly_covered = set()
        for optimizer in self.watch.steps.optimizers:
            parameters = {*parameters_of(optimizer.param_groups)}
            if parameters and parameters <= in_module:
                has_all_of_an_optimizer = True
            elif parameters & in_module:
                partly_covered |= parameters

        if has_all_of_an_optimizer and not self.watch.inspects:
            self._stop_listening(module.modules())  # so that torch.compile does not see the hook
            if self.watch.observer:
                Listened(module, self).was_called = True
        method = None
        if partly_covered and not has_all_of_an_optimizer:
            module, method = holder_on_the_stack(module, partly_covered)
        self._add(module, method)

    def _method(self, module, method, *args, **kwargs):
        """Enable the switches on a model before its method is called for the first time."""
        delattr(module, method)
        self.watch.begins()
        self._add(module, method)
        return getattr(module, method)(*args, **kwargs)

    def _add(self, module, method):
        """Record a model, and enable the switches on it. method: None for its call."""
        if any(model.module() is module for model in self.seen):
            return

        name = type(getattr(module, "_orig_mod", module)).__name__
        if method:
            name = f"{type(module).__name__}.{method}"
        place = call_place(self.watch.folder)
        self.seen.append(Model(ref(module), name, place, method or "forward"))
        for switch in self.watch.switches:
            switch.model_called(module, method)


class Listened:
    """The call of a module to which Models listen. usual: what it runs, None for torch's own."""

    def __init__(self, module, models):
        self.module = module
        self.models = models
        self.usual = module._compiled_call_impl
        self.was_called = False
        # Not by setattr: a compiled wrapper hands attributes to what it wraps.
        module.__dict__["_compiled_call_impl"] = self

    def __call__(self, *args, **kwargs):
        models = self.models
        watch = models.watch
        is_watched = threading.get_ident() == watch.thread and not watch.in_backward
        is_outermost = is_watched and models.depth == 0
        if is_outermost:
            if not self.was_called:
                self.was_called = True
                models.called_first(self.module)
            if watch.observer:
                watch.observe("model calls", watch.observer.called, (args, kwargs))

        models.depth += is_watched
        try:
            output = models.implementation(self.module)(*args, **kwargs)
        finally:
            models.depth -= is_watched
        if is_outermost and watch.observer:
            watch.observe("model calls", watch.observer.returned, output)
        return output


def parameters_of(groups):
    return [p for group in groups for p in group["params"]]


def modules_with(parameters):
    """Return the live modules that hold any of these parameters, themselves or in a child."""
    parameters = {*parameters}
    modules = [value for value in gc.get_objects() if issubclass(type(value), Module)]
    # A list's parameters() is torch's own; a class of the script may define another.
    return [m for m in modules if not parameters.isdisjoint(ModuleList([m]).parameters())]


def holder_on_the_stack(module, parameters):
    """Return the smallest module that holds all of these parameters, and its running method.

    For model.loss(x) return the model and "loss"; without such a call, the module itself and None.
    parameters: a set.
    """
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        holder = frame.f_locals.get("self") if frame.f_code.co_argcount else None
        if issubclass(type(holder), Module) and holder is not module:
            name = frame.f_code.co_name
            is_method = callable(getattr(type(holder), name, None))
            if is_method and parameters.issubset(holder.parameters()):
                return holder, name
    return module, None

"""The models of a training script: modules that are called outermost and hold trained parameters.

A module is listened to by its attribute `_compiled_call_impl`, which torch calls in place of its
own implementation, leaves out of copies and pickles, and does not look at when it compiles. Modules
are listened to in the first iterations alone.
"""

import gc
import sys
import threading
import traceback
from collections import Counter

from torch.nn import Module


class ModelCalls:
    """Calls of modules with trained parameters, told apart by depth.

    called_first: called with a module before it is called outermost for the first time.
    leaf_called: called with a module without children before each call, unless None.
    in_backward: True during backward; calls in it repeat parts of the forward.
    """

    def __init__(self, called_first):
        self.called_first = called_first
        self.leaf_called = None
        self.in_backward = False
        self.depth = 0
        self.thread = threading.get_ident()
        self.listening = {}  # modules by id
        self.implementations = {}  # by id: what a module's call runs in place of its usual one
        self.called = set()  # ids of modules that were called outermost
        self.outermost = Counter()  # such calls by id, in this iteration

    def listen(self, parameters):
        """Listen to all modules that hold any of these parameters, themselves or in a child."""
        for module in modules_with(parameters):
            if id(module) not in self.listening:
                self.listening[id(module)] = module
                self.implementations.setdefault(id(module), module._compiled_call_impl)
                # Not by setattr: a compiled wrapper hands attributes to what it wraps.
                module.__dict__["_compiled_call_impl"] = self._listened_call(module)

    def _listened_call(self, module):
        is_leaf = not [*module.children()]

        def listened_call(*args, **kwargs):
            if threading.get_ident() != self.thread or self.in_backward:
                return self.implementation(module)(*args, **kwargs)

            if self.depth == 0:
                self.outermost[id(module)] += 1
                if id(module) not in self.called:
                    self.called.add(id(module))
                    self.called_first(module)
            if is_leaf and self.leaf_called:
                self.leaf_called(module)

            self.depth += 1
            try:
                return self.implementation(module)(*args, **kwargs)
            finally:
                self.depth -= 1

        return listened_call

    def implementation(self, module):
        return self.implementations.get(id(module)) or module._call_impl

    def replace(self, module, function):
        """Let a module's calls run a function, from the next call on, for good."""
        self.implementations[id(module)] = function
        if id(module) not in self.listening:
            module.__dict__["_compiled_call_impl"] = function

    def stop_listening(self, model=None):
        """Leave all modules, or those of a model, as they would be without listening."""
        modules = list(self.listening.values()) if model is None else model.modules()
        for module in modules:
            if self.listening.pop(id(module), None) is not None:
                module.__dict__["_compiled_call_impl"] = self.implementations[id(module)]


def ids_of(parameters):
    return {id(p) for p in parameters}


def modules_with(parameters):
    """Return the live modules that hold any of these parameters, themselves or in a child."""
    ids = ids_of(parameters)
    modules = [value for value in gc.get_objects() if issubclass(type(value), Module)]
    # A class may define other parameters().
    return [m for m in modules if any(id(p) in ids for p in Module.parameters(m))]


def holder_on_the_stack(module, parameters):
    """Return the smallest module that holds all of these parameters, and its running method.

    It is that of a call such as model.loss(x), of which the name is returned. Without one, return
    the module itself, and None.
    """
    ids = ids_of(parameters)

    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        holder = frame.f_locals.get("self") if frame.f_code.co_argcount else None
        if issubclass(type(holder), Module) and holder is not module:
            name = frame.f_code.co_name
            is_method = callable(getattr(type(holder), name, None))
            if is_method and ids <= ids_of(holder.parameters()):
                return holder, name
    return module, None

"""Steps of a script's optimizers, and where they are taken."""

import os
import threading
from multiprocessing.process import BaseProcess
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.optim import optimizer as torch_optimizer

from tools.own_script.replaced import replace
from tools.own_script.shared_lines import SharedLines
from tools.own_script.user_code import Ended, call_place, hide_from_dynamo

NEW_OPTIMIZER = "a new optimizer"  # an event
MOST_STEPS = 16  # by one optimizer in an iteration
# An optimizer takes over in one of these or more iterations, so in fewer than a third.
LEAST_ITERATIONS = 4


# Why there are no steps to measure.
NO_STEP = "ends without a step of a torch.optim.Optimizer"
MORE_PROCESSES = f"{NO_STEP} in this process; it starts others, whose steps are not measured"
IN_PROCESSES = (
    "its optimizer steps in processes that it starts; only those of the first are measured"
)
IN_THREADS = "its optimizer steps in other threads; only those of the main thread are measured"


class OptimizerSteps:
    """Observes optimizers in the thread and the process of a Watch, and ends its iterations.

    optimizers: class and Place of each that is alive. running: optimizers whose step runs, a
    wrapper before what it wraps. count: number of steps. problems: why none is measured, the last
    of them.
    """

    count = 0

    def __init__(self, watch):
        self.watch = watch
        self.optimizers = WeakKeyDictionary()
        self.running = []
        self.ends = StepEnds()
        self.process = os.getpid()
        self.problems = SharedLines()
        self.problems.add(NO_STEP)

        torch_optimizer.register_optimizer_step_pre_hook(self._begins)
        torch_optimizer.register_optimizer_step_post_hook(self._ended)
        replace(torch.optim.Optimizer, "__init__", self._made)
        replace(torch.amp.GradScaler, "step", self._scaler_step)
        add_problem = self.problems.add
        watch.after("processes", BaseProcess, "start", lambda *_: add_problem(MORE_PROCESSES))

    def _made(self, usual, optimizer, *args, **kwargs):
        usual(optimizer, *args, **kwargs)
        if not self.optimizers:
            hide_from_dynamo()
        self.optimizers[optimizer] = type(optimizer).__name__, call_place(self.watch.folder)
        self.ends.waiting.add(optimizer)
        self.watch.note(NEW_OPTIMIZER)
        self.watch.models.optimizer_made()
        for switch in self.watch.switches:
            switch.optimizer_made(optimizer)

    def _is_here(self):
        """Return whether a step is taken in the watched thread, or in one of its backward's."""
        if os.getpid() != self.process:
            if not self.count:  # nor would the first process take any
                self.problems.add(IN_PROCESSES)
                os._exit(0)
            return False

        is_foreign = isinstance(threading.current_thread(), threading._DummyThread)
        of_backward = is_foreign and self.watch.in_backward
        is_watched = threading.get_ident() == self.watch.thread or of_backward
        if not is_watched:
            self.problems.add(IN_THREADS)
        return is_watched

    def _begins(self, optimizer, args, kwargs):
        if not self._is_here():
            return
        self.running.append(optimizer)
        if len(self.running) == 1:
            watch = self.watch
            watch.losses_before_step = len(watch.iteration.losses)
            watch.begins()
            if watch.loss_scale:
                watch.loss_scale.step_begins(optimizer)
            if watch.observer:
                arguments = [*args, *kwargs.values()]
                watch.observe("steps", watch.observer.step_begins, optimizer, arguments)

    def _ended(self, optimizer, args, kwargs):
        if optimizer not in self.running or not self._is_here():
            return
        del self.running[self.running.index(optimizer) :]
        if self.watch.loss_scale and not self.running:
            self.watch.loss_scale.step_ended()
        self._stepped(optimizer)

    def _scaler_step(self, usual, scaler, optimizer, *args, **kwargs):
        count = self.count
        result = usual(scaler, optimizer, *args, **kwargs)
        if self.count == count:  # it was skipped
            self._stepped(optimizer)
        return result

    def _stepped(self, optimizer):
        """Record a step, and end the iteration if it does."""
        self.count += 1
        self.optimizers.setdefault(optimizer, (type(optimizer).__name__, None))
        ending = self.ends.ending
        if self.ends.stepped(optimizer):
            self.running.clear()  # errors have ended the steps that are left
            if self.ends.ending is not ending:
                self.watch.note("another optimizer")
            self.watch.end_iteration()


class StepEnds:
    """Tells which steps of a script's optimizers end an iteration.

    The first iteration ends when all optimizers have stepped: a GAN has a step of each, or five
    steps of one and one of the other. One that has not stepped when another has MOST_STEPS times is
    not waited for. From then on iterations end with the same optimizer. If they have several,
    another one has to step before, so that a second step for a regularizer ends none.

    Another optimizer takes over, as that of the next client, fold or phase, if this one is deleted,
    or if the other one steps twice without it. Iterations have as many optimizers as before.
    """

    optimizers = 0  # their number in an iteration, 0 in the first one

    def __init__(self):
        self.waiting = WeakSet()  # optimizers that have not stepped yet
        self.ending = lambda: None  # reference to the optimizer that ends iterations
        self.steps = []  # ids of the optimizers that have stepped in this iteration, latest first
        self.iterations = []  # their number, by optimizer that ended them

    def stepped(self, optimizer):
        """Record a step. Return whether it ends the iteration. Raises Ended if none can be told."""
        self.waiting.discard(optimizer)
        ending = self.ending()
        key = id(optimizer)
        since = [*self.steps, key].index(key)  # number of steps since its latest one
        is_due = ending is None or since < len(self.steps)
        turn = {key, *self.steps[:since]}
        self.steps.insert(0, key)
        is_last = self.steps.count(key) == MOST_STEPS

        if not self.optimizers:
            is_end = is_last or not self.waiting
        elif optimizer is ending:
            is_end = self.optimizers == 1 or len(turn) > 1
        else:  # it may take over
            is_end = is_due and id(ending) not in turn and len(turn) == self.optimizers

        if not is_end:
            if is_last:
                count = sum(self.iterations)
                raise Ended(f"after {count} steps its optimizers no longer step as before")
            return False

        if optimizer is not ending:
            # The first two steps of an optimizer that takes over are one iteration.
            latest = self.iterations[-2:]
            if ending and len(latest) == 2 and max(latest) < LEAST_ITERATIONS:
                raise Ended(f"another optimizer takes over every {latest[-1] + 1} steps")
            self.ending = ref(optimizer)
            self.iterations.append(0)
        self.iterations[-1] += 1
        self.optimizers = self.optimizers or len({*self.steps})
        self.steps.clear()
        return True

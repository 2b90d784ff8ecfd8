"""The switch of float16, with a loss scale that the script does not see."""

import torch

from Utils.own_script.switches import BrainFloat16
from Utils.own_script.user_code import Ended


class Float16(BrainFloat16):
    """Run the forward of each model under autocast to float16, and scale the loss.

    Gradients are unscaled right after each backward, so clipping, logging and the script's own
    lines read them as ever; several optimizers share the scale. A step whose gradients overflow is
    left out, and the scale halves.

    Needs: float16
    Gains: time, memory
    Costs: 10 bits of mantissa and a small range; steps that overflow are lost.
    See: https://docs.pytorch.org/docs/stable/amp.html
    """

    name = "float16"
    lines = [
        ('with torch.autocast("{device}", torch.float16):  # around the forward', "call"),
        ("scaler = torch.amp.GradScaler()", "anywhere"),
        ("scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()", "anywhere"),
    ]
    dtype = torch.float16
    scale = None

    def refusal(self, look):
        if look.watch.own_scaler:
            return "already in your script: a GradScaler"
        closure = "its optimizer calls a closure, in which a loss scale would have to be kept"
        return super().refusal(look) or closure * look.watch.used_closure

    def start(self):
        self.watch.loss_scale = self
        self.kept = []

    def scaled(self, loss):
        """Return a loss times the scale, and scale gradients of a backward before, to which this
        one adds."""
        if self.watch.stepping:
            raise Ended("unsupported", "backward runs inside the optimizer's step")
        if self.scale is None:
            self.scale = torch.full((), 65536.0, device=loss.device)
            self.steps_without = torch.zeros((), dtype=torch.int32, device=loss.device)
            self.overflow = torch.zeros((), device=loss.device)
        if gradients := self._gradients():
            torch._foreach_mul_(gradients, self.scale)
        return loss * self.scale

    def unscale(self):
        """Unscale the gradients, and note an overflow on the device."""
        if gradients := self._gradients():
            inverse = self.scale.double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, self.overflow, inverse)

    def _gradients(self):
        return [p.grad for p in self.watch.parameters() if p.grad is not None]

    def step_begins(self, optimizer):
        """Leave out a step after an overflow: parameters without a gradient are not updated."""
        if self.scale is None:
            return
        if all(group.get("fused") for group in optimizer.param_groups):
            optimizer.found_inf = self.overflow  # the kernel reads it, so the host need not wait
        elif self.overflow.item():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self.kept = [(p, p.grad) for p in parameters]
            for p in parameters:
                p.grad = None

    def step_ended(self):
        for p, gradient in self.kept:
            p.grad = gradient
        self.kept = []

    def iteration_ended(self):
        """Halve the scale after an overflow, and double it after 2000 steps without one."""
        if self.scale is not None:
            factors = 2.0, 0.5, 2000  # as torch.amp.GradScaler has them
            torch._amp_update_scale_(self.scale, self.steps_without, self.overflow, *factors)
            self.overflow.zero_()

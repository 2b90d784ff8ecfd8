"""Runs of a script with one thing other than usual, which show how much its figures vary by it."""

import pickle
import random

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import dataloader

from tools.own_script.models import modules_with
from tools.own_script.replaced import replace, unwatched
from tools.own_script.rounding import ROUNDING

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")  # functions
ATTENTION = "scaled_dot_product_attention"


class Perturbation:
    """One thing that is other than usual: what `kind` names, "" for nothing.

    kind: a key of ROUNDING, whose rounding the parameters are shifted by before the first model
    call; "random numbers", others after the first batch; "order", others before it, so that samples
    have another order, too; "dropout", which has the probability 0.
    number: of several such runs.
    """

    def __init__(self, watch, kind, number):
        self.watch = watch
        self.kind = kind
        self.seed = 12345 + number  # not one that a script sets
        self.is_due = bool(kind)
        if kind == "order":
            replace(dataloader._BaseDataLoaderIter, "__init__", self._loader_begins)
        if kind == "dropout":
            for name in DROPOUTS:
                replace(functional, name, _without_dropout)
            replace(functional, ATTENTION, _attention_without_dropout)

    @unwatched
    def begins(self):
        """Act before the first model call, when the parameters are there."""
        if not self.is_due:
            return
        self.is_due = False
        parameters = self.watch.parameters()

        # Shift each parameter by a rounding, up or down at random.
        if self.kind in ROUNDING:
            generator = torch.Generator().manual_seed(self.seed)
            with torch.no_grad():
                for p in parameters:
                    signs = torch.randint(2, p.shape, generator=generator) * 2 - 1
                    p += p * signs.to(p.device) * ROUNDING[self.kind]

        # Set the probability of dropout to 0 in all modules.
        elif self.kind == "dropout":
            for module in modules_with(parameters):
                for child in module.modules():
                    if isinstance(child, torch.nn.modules.dropout._DropoutNd):
                        child.p = 0.0
                    elif isinstance(getattr(child, "dropout", None), float):
                        child.dropout = 0.0  # of LSTM, MultiheadAttention
        else:
            self._reseed()

    def _reseed(self):
        torch.manual_seed(self.seed)  # on all devices
        np.random.seed(self.seed)
        random.seed(self.seed)

    @unwatched
    def _loader_begins(self, usual, iterator, loader, *args, **kwargs):
        if self.is_due:
            self.is_due = False
            self._reseed()
            if loader.generator is not None:
                loader.generator.manual_seed(self.seed)
        usual(iterator, loader, *args, **kwargs)


def _without_dropout(usual, x, *args, **kwargs):
    return x


def _attention_without_dropout(usual, *args, **kwargs):
    kwargs.pop("dropout_p", None)
    return usual(*args[:4], *[0.0 for _ in args[4:5]], *args[5:], **kwargs)


def random_state():
    """Return the states of all random number generators, bytes to compare."""
    states = [torch.get_rng_state().numpy(), random.getstate(), np.random.get_state()]
    if torch.cuda.is_initialized():
        states += [state.numpy() for state in torch.cuda.get_rng_state_all()]
    return pickle.dumps(states)

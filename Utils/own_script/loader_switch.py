"""The switch of the loader: workers, and copies from pinned memory that do not wait."""

import torch
from torch.utils import data

from Utils.device import device_choice
from Utils.own_script.switch import Switch
from Utils.own_script.watch import replace

WORKERS = 2


class PrefetchingLoader(Switch):
    """Let two workers prepare the batches of a DataLoader, in pinned memory on a GPU, from which
    copies to it do not wait.

    Needs: nothing
    Gains: time where the script waits for its batches
    Costs: two processes; transforms that draw at random draw other numbers.
    See: https://docs.pytorch.org/docs/stable/data.html
    """

    name = "prefetching_loader"

    @classmethod
    def refusal(cls, seen):
        if not seen.loaders:
            return "has no DataLoader"
        iterable = "each of two workers would yield all samples of an IterableDataset"
        on_device = "its samples lie on the device, which forked workers cannot use"
        return (
            seen.has("workers")
            or iterable * all(loader.iterable for loader in seen.loaders)
            or on_device * any(loader.on_device for loader in seen.loaders)
        )

    @classmethod
    def lines(cls, seen):
        code = f"num_workers={WORKERS}, pin_memory=True, persistent_workers=True,"
        return [(code, loader.site) for loader in seen.loaders if not loader.iterable]

    def start(self):
        replace(data.DataLoader, "__init__", self._made)
        if device_choice.has_cuda():
            replace(torch.Tensor, "to", self._copied)
            replace(torch.Tensor, "cuda", self._copied)

    def _made(self, usual, loader, dataset, *args, **kwargs):
        asked = len(args) > 4 or kwargs.get("num_workers") or kwargs.get("multiprocessing_context")
        if asked or isinstance(dataset, data.IterableDataset):
            return usual(loader, dataset, *args, **kwargs)
        kwargs["num_workers"] = WORKERS
        kwargs["persistent_workers"] = True
        kwargs["multiprocessing_context"] = "fork"
        if device_choice.has_cuda():
            kwargs["pin_memory"] = True
        self.took_effect()
        return usual(loader, dataset, *args, **kwargs)

    def _copied(self, usual, tensor, *args, **kwargs):
        """Copy a tensor; one from pinned memory to a GPU without waiting for it."""
        to_gpu = usual.__name__ == "cuda" or any(
            str(target).startswith("cuda") or isinstance(target, int)
            for target in (*args[:1], kwargs.get("device"))
        )
        waits = "non_blocking" not in kwargs and len(args) < 2
        if to_gpu and waits and tensor.device.type == "cpu" and tensor.is_pinned():
            kwargs["non_blocking"] = True
        return usual(tensor, *args, **kwargs)

"""Peak rates, bandwidth and memory of GPUs, from their makers' datasheets: datasheets.toml."""

import math
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from Utils.base.errors import UserError

# A card sold with 24 GB has 24 GiB; the share that a driver keeps is no part of the table.
SOLD = 2**30
MEASURED = "measured"  # in place of a process: peaks and bandwidth are ceilings measured here


@dataclass(frozen=True)
class Datasheet:
    """A row of datasheets.toml, where its columns are explained."""

    key: str
    names: tuple
    float32: float
    tf32: float
    bfloat16: float
    float16: float
    bandwidth: float
    memory: float
    sms: int
    l2: float
    watts: float
    capability: tuple
    process: str
    source: str
    architecture: str = ""

    @property
    def memory_bytes(self):
        return int(self.memory * SOLD)

    @property
    def chip(self):
        """The kind of chip: forecasts for one kind are assumed to be equally good."""
        return self.architecture or self.capability

    def peak(self, precision):
        """Return dense TFLOP/s of products of a type; float32's for tf32 without tensor cores."""
        return getattr(self, precision) or (self.float32 if precision == "tf32" else 0)


@cache
def datasheets():
    """Return the Datasheets by key, in the order of the table."""
    rows = tomllib.loads(Path(__file__).with_name("datasheets.toml").read_text())
    return {
        key: Datasheet(key, tuple(row.pop("names")), capability=tuple(row.pop("capability")), **row)
        for key, row in rows.items()
    }


def named(torch_name):
    """Return the Datasheet of a device by the name that torch gives it, or None. It is matched
    whole: a longer name can be a slower card."""
    return next((sheet for sheet in datasheets().values() if torch_name in sheet.names), None)


def of_device(device, ceilings):
    """Return the Datasheet of a device, None where nothing is known of it. ceilings: measured here,
    or None; for a device that the table lacks, as a step's products are faster (docs/METHOD.md)."""
    listed = named(device.name)
    if listed or not ceilings:
        return listed
    rates = ceilings["matmul_tflops"] | ceilings["emulated_tflops"]
    columns = {key: rates.get(key, 0.0) for key in ("float32", "bfloat16", "float16")}
    columns |= {"bandwidth": ceilings["bandwidth_gb_s"], "process": MEASURED}
    columns |= {"tf32": 0.0, "memory": device.memory_bytes / SOLD, "sms": 1, "l2": 1}
    columns |= {"watts": math.inf, "capability": (0, 0), "source": "make ceilings"}
    return Datasheet("here", (device.name,), **columns)


def find(key):
    """Return the Datasheet of that key. Raises UserError with the nearest keys."""
    normal_key = key.lower().replace("_", "-").replace(" ", "")
    if normal_key in datasheets():
        return datasheets()[normal_key]
    near = get_close_matches(normal_key, datasheets(), n=4, cutoff=0.3)
    remedy = f"nearest: {', '.join(near)}" if near else f"choose {', '.join(datasheets())}"
    raise UserError(f"no device {key!r} in the table", remedy)

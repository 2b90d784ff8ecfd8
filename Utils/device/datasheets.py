"""Peak rates, bandwidth and memory of GPUs, from their makers' datasheets: datasheets.toml."""

from dataclasses import dataclass
from functools import cache

from Utils.base import files

# A card sold with 24 GB has 24 GiB. The table includes the share that the driver keeps.
SOLD = 2**30


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

    def peak(self, precision):
        """Return dense TFLOP/s of products of a type; float32's for tf32 without tensor cores."""
        return getattr(self, precision) or (self.float32 if precision == "tf32" else 0)


@cache
def datasheets():
    """Return the Datasheets by key, in the order of the table."""
    rows = files.tables_beside(__file__, "datasheets.toml")
    return {
        key: Datasheet(key, tuple(row.pop("names")), capability=tuple(row.pop("capability")), **row)
        for key, row in rows.items()
    }


def datasheet_for(torch_name):
    """Return the Datasheet of a device by its name in torch, or None.

    Names must be equal, as a longer name can be a slower card.
    """
    return next((sheet for sheet in datasheets().values() if torch_name in sheet.names), None)

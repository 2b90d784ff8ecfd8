"""What the first, untimed run of a user's script has observed."""

from dataclasses import dataclass, field
from typing import NamedTuple


class InspectedSwitch(NamedTuple):
    """A switch on the script: why it is refused, or "", its needs, texts of its places."""

    refusal: str
    needs: list[str]
    places: list[str] = ()


class Spot(NamedTuple):
    """A statement or a call of the script that a change belongs to.

    location: four numbers, a source_edits.Location. fields: texts for the code that is added.
    reason: why there is no such place, or "".
    """

    file: str
    location: list[int] | None
    fields: dict[str, str]
    reason: str = ""


@dataclass(frozen=True)
class Inspection:
    """What was seen, in types of JSON. Before the run, all is empty.

    version: see `user_code.version`.
    device: its type. precision: that of our scripts on it.
    switches: by name.
    spots: by the kind of a changes.Change.
    in_script: techniques that the script has already.
    methods: pairs of a model's class and the method by which it is called, if not by its call.
    loaders: places where DataLoaders are made, and numbers of their workers.
    waits: operators at which the host waits for the GPU, their places and times in a step.
    flop: FLOP of a step, 0 if they cannot be counted.
    products: matrix products of a step by type, None if they were not observed.
    failures: lines on what could not be observed.
    row: columns of the run. record: its record. profile: of its steps under the profiler.
    """

    version: str = ""
    device: str = ""
    precision: str = ""
    switches: dict[str, InspectedSwitch] = field(default_factory=dict)
    spots: dict[str, list[Spot]] = field(default_factory=dict)
    in_script: list[str] = ()
    methods: list[list[str]] = ()
    loaders: list[list] = ()
    waits: list[list] = ()
    flop: int = 0
    products: dict[str, int] | None = None
    failures: list[str] = ()
    row: dict = field(default_factory=dict)
    record: dict = field(default_factory=dict)
    profile: dict | None = None


def from_json(values):
    """Return the Inspection of the fields in a file."""
    switches = {name: InspectedSwitch(*switch) for name, switch in values["switches"].items()}
    spots = {kind: [Spot(*spot) for spot in spots] for kind, spots in values["spots"].items()}
    return Inspection(**values | {"switches": switches, "spots": spots})

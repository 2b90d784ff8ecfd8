"""What probes answer: a Finding a line, and a TechniqueStatus for each technique."""

from dataclasses import dataclass

from Utils.base import errors


@dataclass(frozen=True)
class Finding:
    """One line about this machine.

    state: "ok", "note", "fault", or "asking": the fault to report if the process ends before the
        next Finding.
    blocks: needs that this fault leaves unmet; every technique needs "run".
    """

    topic: str
    what: str
    state: str = "ok"
    remedy: str = ""
    blocks: tuple = ()


def ok(topic, text, remedy=""):
    """Return a Finding: a note where there is a remedy."""
    return Finding(topic, text, "note" if remedy else "ok", remedy)


def fault(topic, text, remedy, *blocks):
    return Finding(topic, text, "fault", remedy, blocks)


@dataclass(frozen=True)
class TechniqueStatus:
    """status: "runs", "runs without effect", "emulated" or "unsupported"."""

    technique: str
    status: str
    reason: str = ""
    remedy: str = ""
    needs: tuple = ()


def topic_of(probe):
    return probe.__name__.replace("_", " ")


def ask(probe, args):
    """Yield the answers of a probe. An exception becomes one of them."""
    try:
        yield from probe(args)
    except Exception as error:
        text = f"check failed: {type(error).__name__}: {errors.first_line(error)}"
        yield Finding(topic_of(probe), text, "note")

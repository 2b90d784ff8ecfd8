"""Ladders of the scripts of both sides.

A script of ours runs with its side's Utils, a user's with ours.
"""

import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tools.own_script import own_runs, patched_sources
from tools.own_script.own_runs import OwnRuns, OwnScript
from tools.own_script.training_check import TrainingCheck
from tools.pair.sides import FOLDER, Side, errors_of, sides_of, top_of
from Utils.base import command_line, paths
from Utils.base.child import output_of
from Utils.base.errors import UserError
from Utils.launch import suite_runner
from Utils.scripts import ladder
from Utils.scripts.identity import identity_variable
from Utils.scripts.ladder import BASELINE, Ladder, Technique

KERNELS = paths.kernels("pair-kernels")
TRIAL = {"model": "gpt2-tiny", "steps": 2, "warmup": 1, "min_seconds": 0, "batch_size": 1}


def kernel_variables(suite_id, name):
    """Return variables by which a script has compile caches of its own, empty at first."""
    return dict.fromkeys(paths.kernel_variables(), str(KERNELS / suite_id / name))


@dataclass(frozen=True)
class SideScript(Technique):
    """A script of the repository as a side has it."""

    side: Side | None = None
    texts: str = ""  # a file of texts by path, which run in place of those files

    @property
    def python(self):
        return self.side.python

    @property
    def identity(self):
        side = self.side
        identity = super().identity
        return replace(identity, label=self.name, columns=side.columns, record=side.record)

    @property
    def resume_key(self):
        return f"{super().resume_key}\0{self.side}\0{os.path.basename(self.texts)}"

    @property
    def command(self):
        # Modules are those of its side, not of its own folder.
        return ["-P", "-m", self.module] if self.texts else ["-P", str(self.path)]

    def environment(self, SUITE_ID="", **more):
        """Return the environment of its process, whose rows state its place in the pair."""
        root = self.side.root
        cache = paths.CACHE if root == paths.ROOT else root / ".cache"
        folders = [str(root), os.environ.get("PYTHONPATH", "")]
        if self.texts:
            folders.insert(0, patched_sources.STARTUP)
            more[patched_sources.VARIABLE] = self.texts

        return {
            **os.environ,
            **identity_variable(self.path.stem, self.identity),
            **kernel_variables(SUITE_ID, self.name),
            "PYTHONPATH": os.pathsep.join(folders),
            "CACHE_DIR": str(cache),
            "SUITE_ID": SUITE_ID,
            **more,
        }


@dataclass(frozen=True)
class OwnSide(OwnScript):
    """A user's script as a side has it."""

    side: Side | None = None

    @property
    def name(self):
        return f"{self.runs.base.name}@{self.side.name}"

    label = name

    @property
    def identity(self):
        identity = super().identity
        return replace(identity, record=identity.record | self.side.record)

    @property
    def resume_key(self):
        return f"{super().resume_key}\0{self.side.record}"

    def environment(self, SUITE_ID, **more):
        kernels = kernel_variables(SUITE_ID, self.name)
        return super().environment(SUITE_ID=SUITE_ID, **kernels, **more)


@contextmanager
def of_ours(args, schedule):
    """Yield the Ladder of scripts of ours on both sides.

    A short run of the baseline has shown that each side works. Raises UserError if one does not.
    """
    sides = sides_of(args)
    here = suite_runner.ladder_of_device(args)
    names = rungs_of_both(here, sides) if args.t == "all" else [args.t or here.last_rung()]

    scripts = {}
    for side in sides:
        with errors_of(side.name, side.text):
            for name in names:
                scripts[f"{name}@{side.name}"] = side_script(name, side)
            try_out(side_script(BASELINE, side), args)
    yield Ladder(scripts)


def rungs_of_both(here, sides):
    """Return the names of the ladder's scripts that both sides have. Others are lines on stderr.

    here: the Ladder of the files as they are. Deleted scripts count too.
    """
    a, b = (ladder.techniques(side.root) for side in sides)
    rungs = replace(here, scripts=a | b | here.scripts).group("ladder")

    names = [*rungs.repeated().scripts]
    for side, scripts in zip(sides, (a, b), strict=True):
        for name in names:
            if name not in scripts:
                print(f"{name}: left out, as {side.name}={side.text!r} lacks it", file=sys.stderr)
    return [name for name in names if name in a and name in b]


def side_script(name, side):
    """Return the SideScript of a technique on a side. Raises UserError."""
    techniques = ladder.techniques(side.root)
    if name not in techniques:
        raise UserError(f"has no script {name}")
    changes = {
        "name": f"{name}@{side.name}",
        "parent": f"{name}@A" if side.name == "B" else None,
        "suite": "pair",
        "change": side.text,
        "side": side,
    }
    return SideScript(**vars(techniques[name]) | changes)


def try_out(script, args):
    """Run a script for two steps of a tiny model. Raises UserError with its last line."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "trial.csv"
        flags = command_line.round_flags(args, args.round, **TRIAL, results_file=file)
        output_of([script.python, *script.command, *flags], script.environment())


@contextmanager
def of_own(args, schedule):
    """Yield the Ladder of a user's script on both sides. Raises UserError.

    The script has run alone on each side, to be looked at, and to judge whether B trains the same.
    """
    base = own_runs.find(args.base, args)
    side_a, side_b = sides_of(args, Path(base.file).parent)
    with own_side(base, side_a, args) as a, own_side(base, side_b, args, a.name) as b:
        TrainingCheck(a, args, schedule).judge(b)
        yield Ladder({a.name: a, b.name: b}, base.name)


@contextmanager
def own_side(base, side, args, parent=None):
    """Yield the OwnSide of a user's script, once it has run alone. Raises UserError."""
    with errors_of(side.name, side.text):
        runs = OwnRuns(moved(base, side, args), args)
    try:
        with errors_of(side.name, side.text):
            print(f"{base.name}@{side.name}: inspecting it", file=sys.stderr)
            runs.inspect()
        yield OwnSide(runs, (), parent, "pair", side.text if parent else "", side=side)
    finally:
        runs.close()


def moved(base, side, args):
    """Return the Base of a user's script among the files of a side, with its Python."""
    base = replace(base, python=side.python)
    if FOLDER not in side.root.parents:
        return base

    names = ["script", "file"]
    if base.is_module or not args.folder:
        names.append("folder")
    top = top_of(Path(base.file).parent)
    places = {name: getattr(base, name).replace(top, str(side.root), 1) for name in names}
    if not Path(places["file"]).exists():
        raise UserError(f"has no file {base.file.removeprefix(top)}")
    return replace(base, **places)

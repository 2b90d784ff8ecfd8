"""Changes of a script, each measured in turns with the script as it is.

A verdict is kept: the same code, on the same device and versions, gets it again without a run.
"""

import ast
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from tools.own_script import own_runs
from tools.own_script.training_check import TrainingCheck
from tools.pair import outside_steps, sides, verdict
from tools.pair.side_runs import own_side, side_script
from tools.pair.verdict import Judgement, not_measured
from Utils.base import command_line, files, paths
from Utils.base.errors import UserError
from Utils.launch import suite_runner
from Utils.launch.schedule import Schedule
from Utils.scripts.ladder import Ladder

MINUTES = 3  # for a change, by default
VERDICT = {"suite_id": str, "change": str}  # a file of the cache


class TriedChanges:
    """Judges changes of one script.

    a: the script as it is, an OwnSide or a SideScript. file: its path. changed: function of a Side,
    texts by path and a Schedule, which returns a context with the script of B.
    """

    def __init__(self, args, a, file, changed):
        self.args = args
        self.a = a
        self.file = file
        self.changed = changed
        self.folder = sides.FOLDER / "judged" / paths.digest(str(file))
        self.minutes = command_line.minutes(args)
        if args.minutes == "auto" and self.minutes:
            self.minutes = MINUTES

    def judge(self, change):
        """Return the Judgement on a change, measured if its code is new."""
        try:
            texts = sides.texts_of(change, self.file)
            trees = _changed_trees(texts)
            if trees:
                judgement = self._known(change, trees) or self._new(change, texts, trees)
            else:
                same = Path(self.file).name
                judgement = not_measured(change, f"its code is that of {same}", same_code=same)
        except UserError as error:
            reason = str(error).removeprefix(f"{change}: ")
            judgement = not_measured(change, reason, code=verdict.FAILED)
        return replace(judgement, tried=len([*self.folder.glob("*")]))

    def again(self, change):
        """Return the Judgement on a change that is measured once more, and is one of one."""
        return self._run(change, sides.texts_of(change, self.file), is_patch=False)

    def _known(self, change, trees):
        """Return the Judgement on a change with the same code, or None."""
        earlier = files.read_cache(self._file(trees), VERDICT)
        if not earlier:
            return None
        path = self.args.results_file
        rows, _ = suite_runner.rows_of(earlier["suite_id"], path)
        if rows.empty:
            return None

        judgement = _judgement(change, suite_runner.Outcome(0, rows, path))
        note = "measured before"
        if earlier["change"] != change:
            note = f"its code is that of {earlier['change']}"
        judgement.sides.notes[change] = note
        return replace(judgement, same_code=earlier["change"])

    def _new(self, change, texts, trees):
        print(f"\n{change}", file=sys.stderr)
        judgement = self._run(change, texts, is_patch=True)
        if not judgement.code:
            suite_id = next(iter(judgement.study.records.values()))["suite_id"]
            files.write_json(self._file(trees), {"suite_id": suite_id, "change": change})
        return judgement

    def _file(self, trees):
        """Return the file of the cache that has the verdict on some code."""
        args = self.args
        conditions = [
            *suite_runner.conditions(args),
            self.a.resume_key,
            self.a.identity.columns,
            self.minutes,
            args.precision,
            trees,
        ]
        return self.folder / paths.digest(repr(conditions))

    def _run(self, change, texts, is_patch):
        side_a, side_b = sides.sides_of_change(self.args, self.a.side.root, change, is_patch)
        schedule = Schedule(self.args, self.minutes)
        with self.changed(side_b, texts, schedule) as b:
            a = replace(self.a, side=side_a)
            outcome = suite_runner.run(Ladder({a.name: a, b.name: b}, a.name), self.args, schedule)
        if outcome.code > 1:  # the line on it is printed
            sys.exit(outcome.code)
        return _judgement(change, outcome)


def _changed_trees(texts):
    """Return the syntax trees of texts by path, without files that they do not change."""
    trees = {path: _tree(text) for path, text in texts.items()}
    return {path: tree for path, tree in trees.items() if tree != _tree(sides.source_of(path))}


def _tree(text):
    """Return a text that is the same for sources with the same syntax tree."""
    try:
        return ast.dump(ast.parse(text))
    except (SyntaxError, ValueError):
        return text


def _judgement(change, outcome):
    """Return the Judgement on a change by the rows of its suite."""
    rows = outcome.rows
    of_b = rows[rows.parent != ""]
    if of_b.empty:
        return not_measured(change, "no run has ended", code=verdict.FAILED)
    summary = outcome.summary
    both = verdict.both_sides(summary, {change: (of_b.parent.iloc[0], of_b.technique.iloc[0])})
    code = outcome.code
    if not any(both.ratios.values()):  # a side is unsupported
        code = verdict.FAILED
    return Judgement(both, summary.study, code, outside_steps.growths(summary, both))


@contextmanager
def of_own(args):
    """Yield the TriedChanges of a user's script, which has run alone once. Raises UserError."""
    base = own_runs.find(args.base, args)
    source = sides.source_of(base.file)
    side, _ = sides.sides_of_change(args, Path(base.file).parent, "", True)

    # Its source is read from memory, too, so that both sides are alike.
    with own_side(replace(base, patched={base.file: source}), side, args) as a:
        checks = []  # one, from the first change on

        @contextmanager
        def changed(side, texts, schedule):
            schedule.start()
            with own_side(replace(base, patched=texts), side, args, a.name) as b:
                if not checks:
                    checks.append(TrainingCheck(a, args, schedule))
                checks[0].begin(schedule)
                checks[0].judge(b)
                yield b

        yield TriedChanges(args, a, base.file, changed)


@contextmanager
def of_ours(args):
    """Yield the TriedChanges of a script of ours. Raises UserError."""
    here = suite_runner.ladder_of_device(args)
    name = args.t or here.last_rung()
    side, _ = sides.sides_of_change(args, paths.ROOT, "", True)
    script = side_script(name, side)
    if here.get(name).note:
        raise UserError(f"T={name}: runs {here.get(name).note} here, as another script")

    with tempfile.TemporaryDirectory() as folder:

        def of_side(side, texts):
            file = Path(folder, paths.digest(repr(texts)))
            files.write_json(file, texts)
            return replace(side_script(name, side), texts=str(file))

        def changed(side, texts, schedule):
            if {*texts} != {str(script.path)}:
                raise UserError(f"{side.text}: a patch may change {script.path} alone")
            return nullcontext(of_side(side, texts))

        a = of_side(side, {str(script.path): script.path.read_text()})
        yield TriedChanges(args, a, str(script.path), changed)

"""Will it run here, and what holds it back? Asked in seconds, without training.

    python -m Utils.doctor [flags of the scripts] [--json]

It says what is there, what is worth a note and what is a fault, each fault with its remedy; then,
technique by technique, whether it runs, runs without effect, is emulated or unsupported; then, in
at most five lines, what holds a run back and which technique addresses it. The exit code is 0 as
long as any technique can run.

What a technique needs is what its script declares, and each need is put to the same check as in a
run. Whatever torch has to answer is asked in a process of its own, since its import, or the
driver, can crash or hang, and so is each package with native code. This one imports none of them.
"""

from __future__ import annotations  # an older Python should be told so, and not stumble

import argparse
import ast
import importlib.util
import json
import math
import os
import re
import shutil
import sys
import textwrap
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import chain
from types import SimpleNamespace

from Utils import ladder, probes, settings
from Utils.errors import Unsupported, first_line, one_line
from Utils.probes import Apart, Finding, ask
from Utils.settings import ROOT

UNASKED = "could not be asked"


@dataclass(frozen=True)
class Row:
    technique: str
    status: str  # runs, runs without effect, emulated or unsupported
    reason: str = ""
    remedy: str = ""
    needs: tuple = ()
    lacks: tuple = ()  # those that are not met


# A row a technique ------------------------------------------------------------------------------

REMEDIES = {  # for a need: another that has to be met, and what then does instead
    "tf32": ("float16", "float16_grad_scaler is the way to tensor cores there"),
    "bfloat16": ("float16", "float16_grad_scaler is the way to 16 bits there"),
    "float16": ("bfloat16", "brainFloat16 is the way to 16 bits there"),
}


@cache
def declarations(source):
    """What a script says that it needs, in the order in which it runs: (method, arguments) of every
    call args.require...(...), with those that are in what it takes from Utils. Arguments are None
    where they are not written out. Raises SyntaxError where it is no Python."""
    tree = ast.parse(source)
    taken = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("Utils."):
            for alias in node.names:
                taken[alias.asname or alias.name] = _definition(node.module, alias.name)
    found = []
    for call in _calls(tree):
        if isinstance(call.func, ast.Name) and taken.get(call.func.id):
            for inner in _calls(taken[call.func.id]):
                found += _required(inner)
        found += _required(call)
    return found


def _calls(tree):
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _required(call):
    if re.match(r"args\.require\w*$", ast.unparse(call.func)):
        try:
            yield call.func.attr, tuple(map(ast.literal_eval, call.args))
        except ValueError:
            yield call.func.attr, None


@cache
def _definition(module, name):
    """The syntax tree of a class or function of Utils, or None."""
    for node in _tree(ROOT.joinpath(*module.split(".")).with_suffix(".py")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    return None


@cache
def _tree(path):
    return ast.parse(path.read_text())


def _not_installed(source):
    """The modules that a script imports before anything else, and that are not there."""
    for node in ast.parse(source).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            if importlib.util.find_spec(name.split(".")[0]) is None:
                yield name.split(".")[0]


def judge(technique, parent, args):
    """The Row of a technique on a device, by the checks that its own run would make.

    parent: the technique that it names as such, or None. args: Settings, with device and shape.
    A need without effect here is held against the technique that brings it in, not against those
    that inherit it; one that is emulated is emulated in all of them.
    """
    from Utils import hardware, run

    try:
        source = technique.path.read_text()
        declared, missing = declarations(source), list(_not_installed(source))
    except SyntaxError as error:
        return Row(technique.name, "unsupported", f"no Python: line {error.lineno}: {error.msg}")
    except (OSError, ValueError) as error:
        return Row(technique.name, "unsupported", f"cannot be read: {first_line(error)}")
    inherited = []
    with suppress(Exception):
        inherited = declarations(parent.path.read_text())
    needs, lacks, notes, status = [], [], [], "runs"
    against = [
        (f"imports {name}, which is not installed", f"pip install {name}") for name in missing
    ]
    trial = run.Settings(**vars(args))
    for method, values in declared:
        if values is None:
            notes.append(f"what it hands to {method} is not written out, and was not checked")
            continue
        trial.needs, trial.notes = [], []
        try:
            getattr(trial, method)(*values)
        except Unsupported as error:
            lacks.append(values[0] if method == "require" else method)
            against.append((str(error), _instead(lacks[-1], args.hardware)))
        except Exception as error:  # as it would in the run
            against.append((f"{type(error).__name__}: {first_line(error)}", ""))
        needs += trial.needs
        for note in trial.notes:
            notes.append(str(note))
            if isinstance(note, hardware.Emulated):
                status = "emulated"
            elif isinstance(note, hardware.WithoutEffect) and (method, values) not in inherited:
                status = "runs without effect" if status == "runs" else status
    if against:  # the first of them ends the run
        return Row(technique.name, "unsupported", *against[0], needs, lacks)
    return Row(technique.name, status, "; ".join(dict.fromkeys(notes)), "", needs, lacks)


def _instead(need, device):
    """The remedy for a need that is not met, where there is one on this device; else ""."""
    from Utils import hardware

    other, remedy = REMEDIES.get(need, (None, ""))
    with suppress(Unsupported):
        if remedy:
            hardware.check(other, device)
            return remedy
    return ""


def overlay(row, faults):
    """The row, unsupported where a fault takes away what it needs."""
    for fault in faults:
        if taken := {"run", *row.needs} & {*fault.blocks}:
            row = replace(row, lacks=sorted({*row.lacks, *taken}))
            if row.status != "unsupported" or row.reason == UNASKED:
                reason = f"{fault.topic}: {fault.what}"
                row = replace(row, status="unsupported", reason=reason, remedy=fault.remedy)
    return row


# Advice -----------------------------------------------------------------------------------------

PRECISIONS = {"bfloat16": "brainFloat16", "float16": "float16_grad_scaler", "tf32": "tensorFloat32"}


def advice(findings, rows, most=5):
    """At most so many lines, the heaviest first: dicts of `advice` and of `because`, the topics
    whose figures it repeats. What is broken comes before what could be faster, and no technique is
    named that does not run here."""
    facts = {name: value for finding in findings for name, value in finding.figures.items()}
    can = {row.technique for row in rows if row.status in ("runs", "emulated")}
    lines = []

    def say(topic, text, *techniques):
        named = [name for name in techniques if name in can]
        if named or not techniques:
            text = f"{text}: {', '.join(named)}" if named else text
            lines.append({"advice": text, "because": [topic]})

    def lost(fault):
        """How many techniques it alone holds back."""
        return sum(bool(row.lacks) and {*row.lacks} <= {*fault.blocks} for row in rows)

    for fault in sorted((f for f in findings if f.state == "fault"), key=lost, reverse=True):
        if count := lost(fault):
            what = f"{fault.topic} holds back {count} of {len(rows)} techniques"
            say(fault.topic, f"{what} -> {fault.remedy}")
        elif not fault.blocks:
            say(fault.topic, f"{fault.topic}: {fault.what} -> {fault.remedy}")
    for note in findings:
        if note.state == "note" and note.remedy and note.topic in ("gpu", "processor", "threads"):
            say(note.topic, f"{note.what} -> {note.remedy}")
    plain = facts.get("float32_tflops", math.inf)
    for precision, technique in PRECISIONS.items():
        rate = facts.get(f"{precision}_tflops", 0)
        if technique in can and rate > 1.1 * plain:
            text = f"products reach {plain:,.2f} TFLOP/s in float32 and {rate:,.2f} in {precision}"
            say("ceilings", text, technique)
            break
    if plain == math.inf and facts.get("type") == "cuda" and facts["capability"] >= 7:
        text = f"compute capability {facts['capability']} has tensor cores, idle in plain float32"
        faster = [technique for technique in PRECISIONS.values() if technique in can]
        say("device", text, *(faster[:1] or PRECISIONS.values()))
    if facts.get("scores_mib", 0) >= 64:
        text = f"{facts['scores_mib']:,.1f} MiB of scores a layer go to memory and back"
        say("step", text, "flash_attention")
    if facts.get("update_ms", 0) >= 0.2 * facts.get("floor_ms", math.inf):
        least = f"{facts['update_ms']:,.1f} of {facts['floor_ms']:,.1f} ms, a step's least"
        text = f"AdamW's update takes {least}"
        say("ceilings", text, "fused_optimizer", "larger_batch")
    on_gpu = facts.get("type") in ("cuda", "rocm", "mps")
    if on_gpu and facts.get("tokens", math.inf) <= 2048:
        text = f"{facts['tokens']} tokens a step leave a GPU waiting for launches"
        say("step", text, "cuda_graphs")
    if on_gpu and facts.get("least_gib", 0) > 0.7 * facts.get("free_gib", math.inf):
        text = f"the baseline takes {facts['least_gib']:.1f} GiB of {facts['free_gib']:.1f} free"
        say("step", text, "gradient_checkpointing", "8bit_optimizer", "fused_cross_entropy")
    if on_gpu and facts.get("usable_cpus", math.inf) <= 2:
        text = f"{facts['usable_cpus']:g} CPUs are few for a loader's workers"
        say("processor", text, "data_on_device")
    return lines[:most]


# Telling ----------------------------------------------------------------------------------------


def inside(args, answers):
    """What has to be asked of torch. Each answer is a line of JSON, at once, so that a crash loses
    only what would have followed; in front of them goes the name of what is asked."""

    def say(kind, what):
        print(json.dumps({kind: what}), file=answers, flush=True)

    say("asking", "torch")
    try:
        import Utils.run  # noqa: F401  with it comes all that a script imports
    except Exception as error:
        what = f"scripts cannot be started: {type(error).__name__}: {first_line(error)}"
        remedy = f"{probes.REQUIREMENTS}; or leave out PYTHON=, and an environment is made"
        say("finding", asdict(Finding("torch", what, "fault", remedy, ("run",))))
        return
    here = SimpleNamespace(args=args)
    for probe in probes.INSIDE:
        if hasattr(args, "hardware") or probe in probes.WITHOUT_DEVICE:
            say("asking", probe.__name__.replace("_", " "))
            for finding in ask(probe, here):
                say("finding", asdict(finding))
    if hasattr(args, "hardware"):
        say("asking", "techniques")
        for finding in ask(techniques, args, lambda row: say("row", asdict(row))):
            say("finding", asdict(finding))


def techniques(args, say):
    known = ladder.techniques()
    for technique in known.values():
        say(judge(technique, known.get(technique.parent), args))
    return []


def examine(args, argv):
    """(findings, rows, advice)."""
    torch_part = Apart("-m", "Utils.doctor", "--inside", *argv)
    packages_part = probes.start_native()
    try:
        findings = list(chain.from_iterable(ask(probe, args) for probe in probes.OUTSIDE))
        output, problem = torch_part.end()
        said = [json.loads(line) for line in output.splitlines() if line.endswith("}")]
        findings += [Finding(**line["finding"]) for line in said if "finding" in line]
        findings += ask(probes.native, packages_part)
    finally:
        torch_part.kill()
        packages_part.kill()
    if problem:
        asked = [line["asking"] for line in said if "asking" in line] or ["torch"]
        remedy = "see what nvidia-smi says; DEVICE=cpu leaves the GPU alone"
        if asked[-1] == "torch":  # it was being imported
            remedy = "pip install --force-reinstall torch"
        findings.append(Finding(asked[-1], f"asking ended: {problem}", "fault", remedy, ("run",)))
    rows = {line["row"]["technique"]: Row(**line["row"]) for line in said if "row" in line}
    for name in names_of_techniques():
        rows.setdefault(name, Row(name, "unsupported", UNASKED))
    broken = [finding for finding in findings if finding.state == "fault"]
    rows = [overlay(row, broken) for row in rows.values()]
    return findings, rows, advice(findings, rows)


def names_of_techniques():
    with suppress(OSError):  # which has been told, by whoever needed more than their names
        return list(ladder.techniques())
    return []


def show(findings, rows, lines, terminal):
    """Prints it for people. Faults show without colour, which only a terminal gets."""
    width = max(60, shutil.get_terminal_size().columns) if terminal else 10_000
    colours = {"fault": "\033[31m", "unsupported": "\033[31m", "note": "\033[33m"}

    def line(state, columns, text):
        indent = " " * len(columns)
        text = textwrap.fill(text, width, initial_indent=columns, subsequent_indent=indent)
        text = text[len(columns) :]
        if terminal and state in colours:
            columns = f"{colours[state]}{columns}\033[0m"
        print(f"{columns}{text}".rstrip())

    for finding in findings:
        mark = finding.state.replace("fault", "FAULT")
        line(finding.state, f"{mark:6} {finding.topic:12}  ", finding.what)
        if finding.remedy:
            line("", " " * 21, f"-> {finding.remedy}")
    print()
    told = {finding.remedy for finding in findings}
    name = max((len(row.technique) for row in rows), default=0)
    status = max((len(row.status) for row in rows), default=0)
    for row in rows:
        why = [row.reason, *({row.remedy} - told)]
        columns = f"{row.technique:{name}}  {row.status:{status}}  "
        line(row.status, columns, " -> ".join(filter(None, why)))
    print("\nWhat holds a run back:" if lines else "\nNothing was found that holds a run back.")
    for number, one in enumerate(lines, 1):
        line("", f"{number}. ", one["advice"])


def main(argv=None):
    """Returns the exit code: 0, or 1 where no technique can run."""
    argv = sys.argv[1:] if argv is None else argv
    parser = settings.Parser("doctor", __doc__)
    settings.add_settings(parser)
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.inside:
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints is no answer
        inside(args, answers)
        return 0
    findings, rows, lines = examine(args, argv)
    can_run = any(row.status != "unsupported" for row in rows)
    known = {
        "findings": [asdict(finding) for finding in findings],
        "techniques": [asdict(row) for row in rows],
        "advice": lines,
        "can_run": can_run,
    }
    try:
        if args.json:
            print(json.dumps(known, indent=1))
        else:
            show(findings, rows, lines, sys.stdout.isatty())
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0 if can_run else 1


if __name__ == "__main__":
    with one_line("doctor"):
        sys.exit(main())

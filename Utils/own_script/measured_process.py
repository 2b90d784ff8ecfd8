"""The process in which a training script of the user's runs, unchanged, under a Watch.

It needs torch and numpy alone, and writes its rows and record, or why there are none, as JSON to
the file that its launcher names. Only the launcher writes results.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import runpy
import signal
import sys
import threading
import traceback
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from Utils.base import command_line, paths
from Utils.base.errors import Unsupported, first_line
from Utils.base.setting_table import OF_A_RUN
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.harness import turn_pipe
from Utils.own_script import all_switches, user_code
from Utils.own_script.look import Look
from Utils.own_script.own_run import OwnRun
from Utils.own_script.switch import Ended
from Utils.own_script.switches import TorchCompile
from Utils.own_script.watch import Watch, replace
from Utils.own_script.write_guard import Refused, WriteGuard
from Utils.results import rows_file

LOOKS_AT = 2  # number of the iteration after which a look counts one
PATIENCE_S = 5  # for a script that catches its end
OFF = {  # by their documented variables
    "WANDB_MODE": "disabled",
    "COMET_MODE": "DISABLED",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
CAUSES = {  # words of an error: what is behind it
    "double backward": "torch.compile has no second derivatives",
    "overwritten by a subsequent run": "CUDA graphs overwrite outputs of an earlier call",
}


class Measured:
    """One run of a script. spec: a dict, see `launch.own_scripts`. args: of `settings`."""

    def __init__(self, spec, args):
        self.spec = spec
        self.args = args
        self.run = OwnRun(args)
        names = args.technique.removeprefix(spec["base"]).split("+")[1:]
        throw = self.model_called if names or args.look else None
        self.watch = Watch(spec["folder"], self.begins, self.iteration_ended, throw, args.look)
        self.run.watch = self.watch
        self.switches = [all_switches.SWITCHES[name](self.watch) for name in names]
        self.look = Look(self.watch) if args.look else None
        self.guard = WriteGuard(
            spec["folder"],
            spec["scratch"],
            spec["created"],
            spec["cache"],
            spec["writes"],
            partial(self.watch.note, "a file written"),
        )
        self.answered = False
        if spec["random_samples"] and "prefetching_loader" in names:
            args.notes.append("other samples: workers draw them with other random numbers")
        args.needs = [need for switch in self.switches for need in switch.facts().needs]

    def begins(self):
        if self.run.hardware is None:
            self.run.begins()
            if self.run.hardware is not None:
                self._check_needs()

    def _check_needs(self):
        for need in self.args.needs:
            try:
                self.args.notes += filter(None, [capabilities.check(need, self.run.hardware)])
            except Unsupported as problem:
                raise Ended("unsupported", str(problem)) from None

    def iteration_ended(self, iteration):
        if self.answered:  # the script caught its end
            self.end_process(0)
        if self.guard.refused:
            raise Ended("refused", self.guard.refused)
        number = self.watch.ended_iterations
        if self.look and number == LOOKS_AT:
            self.look.begin_counting()
        elif self.look and number == LOOKS_AT + 1:
            self.look.end_counting()
        try:
            self.run.iteration_ended(iteration)
        except KeyboardInterrupt:  # the launcher has ended; a bare except could catch it
            self.end_process(130)
        except Ended as end:
            self.answer(end)
            raise

    def model_called(self, model, method):
        compiling_first = sorted(self.switches, key=lambda s: not isinstance(s, TorchCompile))
        for switch in compiling_first:  # so that autocast is around what is compiled
            switch.model_called(model.module, method)

    def run_script(self):
        """Run the script. Return the Ended that says how."""
        spec = self.spec
        self.watch.install()
        if self.look:
            self.look.install()
        replace(torch.optim.Optimizer, "__init__", self._optimizer_made)
        if torch.distributed.is_available():
            replace(torch.distributed, "init_process_group", self._group_made)
        for switch in self.switches:
            switch.start()
        seed_everything(self.args.seed)
        self.watch.own_seed = None
        self.guard.install()
        try:
            if spec["module"]:
                sys.argv = [spec["script"], *spec["argv"]]
                sys.path.insert(0, spec["folder"])
                runpy.run_module(spec["script"], run_name="__main__", alter_sys=True)
            else:
                sys.argv = [spec["script"], *spec["argv"]]
                sys.path.insert(0, str(Path(spec["script"]).parent))
                runpy.run_path(spec["script"], run_name="__main__")
        except Ended as end:
            return end
        except Refused as refusal:
            return Ended("refused", str(refusal))
        except BaseException as error:
            return self._after_error(error)
        return self._early()

    def _early(self):
        if self.run.result:
            return Ended()
        if self.guard.refused:
            return Ended("refused", self.guard.refused)
        steps = self.watch.ended_iterations
        if not steps:
            return Ended("refused", "ends without a step of an optimizer of torch.optim")
        remedy = "let it train longer, by ARGS"
        if self.look:
            return Ended("refused", f"ends after {steps} steps, too few to be measured; {remedy}")
        remedy += ", or set STEPS lower"
        return Ended("refused", f"ends after {steps} steps, STEPS={self.args.steps}; {remedy}")

    def _after_error(self, error):
        if self.answered:
            return Ended()
        if isinstance(error, SystemExit):
            if error.code in (None, 0):
                return self._early()
            said = error.code if isinstance(error.code, str) else last_line(self.spec["output"])
            return Ended("refused", f"ends early: {said}")
        traceback.print_exception(error)
        if isinstance(error, ModuleNotFoundError):
            return Ended("refused", missing_package(error, self.spec))
        if device_choice.is_out_of_memory(error):
            return Ended("out_of_memory", "make its batch smaller")
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
        reason += place_of(error, self.spec["folder"])
        if traceback.extract_tb(error.__traceback__)[-1].filename.startswith(user_code.OURS):
            return Ended("failed", reason)
        causes = [cause for words, cause in CAUSES.items() if words in str(error)]
        if self.switches:
            return Ended("unsupported", "; ".join(["the script raises " + reason, *causes]))
        return Ended("refused", reason)

    def _optimizer_made(self, usual, optimizer, *args, **kwargs):
        usual(optimizer, *args, **kwargs)
        for switch in self.switches:
            switch.optimizer_made(optimizer)

    def _group_made(self, usual, *args, **kwargs):
        usual(*args, **kwargs)
        if torch.distributed.get_world_size() > 1:
            raise Ended("refused", "trains on several ranks")

    def answer(self, end):
        """Write the rows and record of a run, or why there are none, to the launcher's file."""
        if self.answered:
            return
        args = self.args
        facts = {"status": end.status, "reason": end.reason, "technique": args.technique}
        facts |= {"run_id": args.run_id, "round": args.round, "seed": args.seed}
        if end.status == "ok":
            for switch in self.switches:
                switch.end()
                if switch.reason:
                    facts["status"] = "unsupported"
                    facts["reason"] = f"{switch.name} has no effect: {switch.reason}"
        if facts["status"] == "ok":
            facts["rows"], facts["record"] = self.run.result
            facts["version"] = args.version
            facts["record"]["own_script"] = self._described()
        if self.look and facts["status"] == "ok":
            facts["look"] = self._looked()
        Path(self.spec["answer"]).write_text(json.dumps(facts, default=str))
        self.answered = True
        threading.Timer(PATIENCE_S, self.end_process, [0]).start()

    def _described(self):
        losses = [len(iteration.losses) for iteration in self.run.iterations]
        return {
            "models": [[model.name, model.site] for model in self.watch.models],
            "optimizers": list(self.watch.optimizer_sites.values()),
            "losses_per_step": sorted(losses)[len(losses) // 2],
            "own_seed": self.watch.own_seed,
            "lines": {s.name: self.spec["lines"].get(s.name, []) for s in self.switches},
        }

    def _looked(self):
        """Return what a look saw, and of each switch why it is refused and its lines."""
        self.guard.active = False
        measured_ceilings.here(self.run.hardware)  # once for a device
        losses = self._described()["losses_per_step"]
        seen = self.look.end(self.run.hardware, losses)
        refusals = {}
        for name, switch in all_switches.SWITCHES.items():
            refusals[name] = switch.refusal(seen)
            for need in switch.facts().needs:
                try:
                    capabilities.check(need, self.run.hardware)
                except Unsupported as problem:
                    refusals[name] = refusals[name] or str(problem)
        needs = {name: switch.facts().needs for name, switch in all_switches.SWITCHES.items()}
        lines = {name: switch.lines(seen) for name, switch in all_switches.SWITCHES.items()}
        waits = [[operator, site, times] for (operator, site), times in seen.waits.items()]
        loaders = [vars(loader) for loader in seen.loaders]
        return {
            "refusals": refusals,
            "needs": needs,
            "lines": lines,
            "waits": waits,
            "loaders": loaders,
            "flop": seen.flop,
            "device": seen.device,
            "own": seen.own,
            "calls_per_step": seen.calls_per_step,
        }

    def end_process(self, code):
        """End this process and its workers without running any more of the script."""
        for child in multiprocessing.active_children():
            child.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def settings(argv):
    """Return the spec and the settings of a run, from the command line."""
    parser = command_line.Parser("measured_process", __doc__, *OF_A_RUN)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--look", action="store_true")
    args = parser.parse_args(argv, argparse.Namespace())
    spec = json.loads(args.spec.read_text())
    args.technique = args.name
    args.base = args.model = args.dataset = spec["base"]
    args.turn = turn_pipe.taken()
    args.started = datetime.now(UTC)
    args.run_id = rows_file.run_id(args.started, args.turn and args.turn.token)
    args.answer = Path(f"{spec['answers']}/{args.run_id}.json")
    spec["answer"] = str(args.answer)
    spec["scratch"] = f"{spec['scratch']}/{args.run_id}"
    spec["output"] = f"{spec['answers']}/{args.run_id}.txt"
    args.min_seconds = args.min_seconds if args.min_seconds != "auto" else "auto"
    args.world_size = 1
    args.rank = 0
    args.seq_len = 1
    args.batch_size = args.requested_batch_size = 1
    args.unit = "steps"
    args.config = None
    args.argv = spec["argv"]
    args.auto = []
    args.notes = []
    args.spec = spec
    args.version_of = version_of
    args.source = spec["source"]
    args.flop = spec.get("flop")
    return spec, args


def has_other_utils(folder):
    """Return whether a folder has a module of its own by the name of our package."""
    package = folder / "Utils"
    is_ours = package.resolve() == paths.ROOT / "Utils"
    return (package.is_dir() and not is_ours) or package.with_suffix(".py").exists()


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    import numpy  # after torch, as the script may choose not to have it

    numpy.random.seed(seed)


def version_of(spec):
    """Return what identifies a version of a script: 7 hexadecimal digits of a hash of its text, the
    modules of its folder that it has imported, and its arguments."""
    digest = hashlib.sha256("\0".join(spec["argv"]).encode())
    files = [Path(spec["file"])]
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(spec["folder"] + os.sep) and user_code.SITE_PACKAGES not in file:
            files.append(Path(file))
    for file in sorted(set(files)):
        if file.suffix == ".py":
            digest.update(file.read_bytes())
    return digest.hexdigest()[:7]


def missing_package(error, spec):
    name = (error.name or str(error)).partition(".")[0]
    return f"needs {name}; install it beside the pinned torch: {spec['install']} {name}"


def last_line(output):
    sys.stderr.flush()
    lines = Path(output).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it says nothing"


def place_of(error, folder):
    """Return " (train.py:12)", the last line of the script that an exception passed."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename.startswith(folder)]
    if not inside:
        return ""
    return f" ({Path(inside[-1].filename).name}:{inside[-1].lineno})"


def main():
    """Run a script. Exit codes: 0 with an answer; 2 where the script is refused; 130 for Ctrl-C."""
    spec, args = settings(sys.argv[1:])
    os.environ.update(OFF)
    measured = Measured(spec, args)
    sys.path[:] = [path for path in sys.path if path not in (str(paths.ROOT), "")]
    ours = [name for name in sys.modules if name == "Utils" or name.startswith("Utils.")]
    measured.watch.our_modules = [sys.modules[name] for name in ours]
    if has_other_utils(Path(spec["folder"])):
        for name in ours:
            del sys.modules[name]
    signal.signal(signal.SIGINT, lambda number, frame: measured.end_process(130))
    terminal = os.dup(2)
    output = os.open(spec["output"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(spec["folder"])
    try:
        end = measured.run_script()
    except Exception as error:  # a fault of ours
        traceback.print_exception(error)
        end = Ended("failed", f"{type(error).__name__}: {first_line(error)}")
    measured.guard.active = False
    measured.answer(end)
    if end.status == "refused":
        os.write(terminal, f"{spec['shown']}: {first_line(end.reason)}\n".encode())
    measured.end_process(2 if end.status == "refused" else 0)

"""The process in which a training script of the user's runs, unchanged, under a Watch.

It needs torch and numpy alone, and writes its rows and record, or why there are none, as JSON to
the file that its launcher names. Only the launcher writes results.
"""

import argparse
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

import numpy as np
import torch

from Utils.base import command_line, paths
from Utils.base.errors import Unsupported, first_line
from Utils.base.setting_table import OF_A_RUN
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.harness import turn_pipe
from Utils.own_script import float16_switch, user_code  # noqa: F401  the first is in SWITCHES then
from Utils.own_script.look import Look
from Utils.own_script.own_run import OwnRun
from Utils.own_script.switch import SWITCHES
from Utils.own_script.switches import TorchCompile
from Utils.own_script.user_code import Ended
from Utils.own_script.watch import Watch
from Utils.own_script.write_guard import WriteGuard
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
        self.answered = False
        self.run = OwnRun(args)
        self.watch = Watch(spec["folder"], self.run.begins, self.iteration_ended, args.look)
        self.run.watch = self.watch
        self.look = Look(self.watch) if args.look else None
        self.guard = WriteGuard(spec, partial(self.watch.note, "a file written"))
        names = args.technique.removeprefix(spec["base"]).split("+")[1:]
        switches = [SWITCHES[name](self.watch) for name in names]
        args.needs = [need for switch in switches for need in switch.needs]
        # The compiler is first at a model, so that autocast is around what is compiled.
        self.watch.switches = sorted(switches, key=lambda s: not isinstance(s, TorchCompile))
        if spec["random_samples"] and "prefetching_loader" in names:
            args.notes.append("other samples: workers draw them with other random numbers")

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

    def run_script(self):
        """Run the script. Return the Ended that says how."""
        spec = self.spec
        self.watch.install()
        if self.look:
            self.look.install()
        for switch in self.watch.switches:
            switch.start()
        random.seed(self.args.seed)
        np.random.seed(self.args.seed)
        torch.manual_seed(self.args.seed)
        self.watch.own_seed = None
        self.guard.install()
        sys.argv = [spec["script"], *spec["argv"]]
        sys.path.insert(0, spec["folder"] if spec["module"] else str(Path(spec["file"]).parent))
        try:
            if spec["module"]:
                runpy.run_module(spec["script"], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(spec["script"], run_name="__main__")
        except Ended as end:
            return end
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
        remedy = "let it train longer, by ARGS" + ("" if self.look else ", or set STEPS lower")
        return Ended("refused", f"ends after {steps} steps of {self.args.steps}; {remedy}")

    def _after_error(self, error):
        if self.answered:
            return Ended()
        if isinstance(error, SystemExit):
            if error.code in (None, 0):
                return self._early()
            sys.stderr.flush()
            output = Path(self.spec["output"]).read_text(errors="replace").strip()
            said = error.code if isinstance(error.code, str) else output.rpartition("\n")[2]
            return Ended("refused", f"ends early: {said or 'it says nothing'}")
        traceback.print_exception(error)
        if isinstance(error, ModuleNotFoundError):
            package = (error.name or str(error)).partition(".")[0]
            install = f"install it beside the pinned torch: {self.spec['install']} {package}"
            return Ended("refused", f"needs {package}; {install}")
        if device_choice.is_out_of_memory(error):
            return Ended("out_of_memory", "make its batch smaller")
        last_line = str(error).strip().rpartition("\n")[2].strip()
        reason = f"{type(error).__name__}: {last_line}"
        frames = traceback.extract_tb(error.__traceback__)
        in_script = [frame for frame in frames if frame.filename.startswith(self.spec["folder"])]
        if in_script:
            reason += f" ({Path(in_script[-1].filename).name}:{in_script[-1].lineno})"
        if frames[-1].filename.startswith(user_code.OURS):
            return Ended("failed", reason)
        causes = [cause for words, cause in CAUSES.items() if words in str(error)]
        if self.watch.switches:
            return Ended("unsupported", "; ".join(["the script raises " + reason, *causes]))
        return Ended("refused", reason)

    def answer(self, end):
        """Write the rows and record of a run, or why there are none, to the launcher's file."""
        if self.answered:
            return
        args = self.args
        answer = {"status": end.status, "reason": end.reason, "technique": args.technique}
        answer |= {"run_id": args.run_id, "round": args.round, "seed": args.seed}
        for switch in self.watch.switches if end.status == "ok" else ():
            switch.end()
            if switch.reason:
                answer["status"] = "unsupported"
                answer["reason"] = f"{switch.name} has no effect: {switch.reason}"
        if answer["status"] == "ok":
            rows, record = self.run.result
            losses = sorted(len(iteration.losses) for iteration in self.run.iterations)
            record["own_script"] = {
                "models": [[model.name, model.site] for model in self.watch.models],
                "optimizers": list(self.watch.optimizer_sites.values()),
                "losses_per_step": losses[len(losses) // 2],
                "own_seed": self.watch.own_seed,
                "lines": {s.name: self.spec["lines"].get(s.name, []) for s in self.watch.switches},
            }
            answer |= {"rows": rows, "record": record, "version": args.version}
            if self.look:
                answer["look"] = self._looked()
        Path(self.spec["answer"]).write_text(json.dumps(answer, default=str))
        self.answered = True
        threading.Timer(PATIENCE_S, self.end_process, [0]).start()

    def _looked(self):
        """Return what a look saw, and of each switch why it is refused, its needs and its lines."""
        look = self.look
        hardware = self.run.hardware
        self.guard.active = False
        measured_ceilings.here(hardware)  # once for a device
        look.end(hardware.torch_device)
        switches = {}
        for name, kind in SWITCHES.items():
            switch = kind(self.watch)
            refusal = switch.refusal(look)
            try:
                for need in switch.needs:
                    capabilities.check(need, hardware)
            except Unsupported as problem:
                refusal = refusal or str(problem)
            lines = []
            for code, where in switch.lines:
                lines += [(code.format(device=look.device), site) for site in look.sites[where]]
            switches[name] = {"refusal": refusal, "needs": switch.needs, "lines": lines}
        return {
            "switches": switches,
            "bfloat16": capabilities.has("bfloat16", hardware),
            "waits": [[operator, site, times] for (operator, site), times in look.waits.items()],
            "loaders": [vars(loader) for loader in look.loaders.values()],
            "flop": look.flop,
            "device": look.device,
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
    parser.add_argument("--name", dest="technique", required=True)
    parser.add_argument("--look", action="store_true")
    args = parser.parse_args(argv, argparse.Namespace())
    spec = json.loads(args.spec.read_text())
    args.spec = spec
    args.base = args.model = args.dataset = spec["base"]
    args.source = spec["source"]
    args.argv = spec["argv"]
    args.turn = turn_pipe.taken()
    args.started = datetime.now(UTC)
    args.run_id = rows_file.run_id(args.started, args.turn and args.turn.token)
    spec["answer"] = f"{spec['answers']}/{args.run_id}.json"
    spec["output"] = f"{spec['answers']}/{args.run_id}.txt"
    spec["scratch"] = f"{spec['scratch']}/{args.run_id}"
    args.world_size = args.seq_len = 1
    args.rank = 0
    args.config = None
    args.auto = []
    args.notes = []
    return spec, args


def main():
    """Run a script. Exit codes: 0 with an answer; 2 where the script is refused; 130 for Ctrl-C."""
    spec, args = settings(sys.argv[1:])
    os.environ.update(OFF)
    measured = Measured(spec, args)
    sys.path[:] = [path for path in sys.path if path not in (str(paths.ROOT), "")]
    ours = {n: module for n, module in sys.modules.items() if n.partition(".")[0] == "Utils"}
    measured.watch.our_modules = list(ours.values())
    theirs = Path(spec["folder"], "Utils")
    is_ours = theirs.resolve() == paths.ROOT / "Utils"
    if theirs.with_suffix(".py").exists() or (theirs.is_dir() and not is_ours):
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

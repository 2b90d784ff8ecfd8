"""Measure what each PyTorch training optimization is worth on this machine.

  stepladder train.py --epochs 1      your script, unchanged: table, recipe, patch, in ten minutes
  stepladder -m pkg.train --lr 1e-3   the same for a module
  stepladder recipe BASE=train        its recipe again; any command: NAME=value or --name value
  stepladder all                      our seven scripts, each with one optimization more
  stepladder report                   all results on one HTML page
  stepladder doctor                   which techniques run here, and why others do not
  stepladder --help                   all commands; with one before it, its settings

Before the script; all words after it are the script's:
  --minutes 10     time for all runs        --python FILE  Python of the script's environment
  --rounds 4       rounds, without a limit  --folder DIR   where it starts; default: this folder
  --without NAME   techniques to leave out  --writes       it may change files that exist
Results, charts and patches go to ./stepladder/.
"""

import importlib
import os
import runpy
import shlex
import sys
from pathlib import Path

from Utils.base import command_line, files, paths
from Utils.base.errors import UserError, run_command, unknown
from Utils.base.text import hanging
from Utils.commands import __main__ as core
from Utils.scripts import ladder

OPTIONS = ("--minutes", "--rounds", "--python", "--folder", "--without", "--writes")
COMMANDS = {  # modules, and words before those of the user
    **{name: f"Utils.commands.{name}" for name in core.NAMES},
    "adopt": "tools.own_script.__main__",
    "all": "Utils.commands.suite ladder --announced",
    "beyond": "Utils.commands.suite beyond --announced",
    "doctor": "tools.doctor.__main__",
    "everything": "Utils.commands.suite everything --announced",
    "field-report": "tools.share.field_report",
    "forecast": "tools.forecast.__main__",
    "pair": "tools.pair.__main__",
    "plots": "plot_results",
    "profile": "tools.profile.__main__",
}
READERS = {"adopt", "ceilings", "diff", "doctor", "field-report", "forecast", "recipe", "table"}


def main(*words):
    """Return the exit code of a command or of a user's script. Raises UserError."""
    names = [*COMMANDS, *ladder.techniques()]
    if not words:
        print(__doc__, end="")
    elif words[0] == "--version":
        print(f"stepladder {paths.VERSION}")
    elif words[0] in ("-h", "--help", "help"):
        print(__doc__)
        print(hanging("Commands: ", ", ".join(names)))
    else:
        try:
            return start([*words], names)
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "sympy"):  # the second comes with the first
                raise
            problem = "our scripts need torch beside stepladder; yours do not"
            raise UserError(problem, f"{paths.PYTHON} -m pip install torch") from None
    return 0


def start(words, names):
    """Run a command or a user's script. Return its exit code. Raises UserError.

    names: of all commands and techniques.
    """
    settings = []
    while words and (words[0].startswith("--") or "=" in words[0]):
        option, equals, _ = words[0].partition("=")
        if option.startswith("--") and option not in OPTIONS:
            raise unknown(f"{option}: no such option", option, OPTIONS)
        settings.append(words.pop(0).replace("--python", "--base-python"))
        if words and not equals and option != "--writes":
            settings.append(words.pop(0))
    if not words:
        raise UserError("no script or command is named", "stepladder --help lists commands")
    name, *words = words
    if name in names:
        return run(name, settings + words)
    if any(name in targets for targets in command_line.targets().values()):
        raise UserError(f"{name}: needs a clone of the repository", f"run make {name} there")

    # A user's script, then its recipe.
    if name == "-m" and words:
        name = f"-m {words.pop(0)}"
    elif not os.path.isfile(name):
        raise unknown(f"{name}: neither a file nor a command", name, names + os.listdir())
    elif Path(name).resolve().parent != Path.cwd():
        settings.append(f"FOLDER={Path.cwd()}")
    base = f"BASE={name}"
    code = run("all", [*settings, base, f"ARGS={shlex.join(words)}"])
    return code if code > 1 else run("recipe", [base]) or code


def run(name, words):
    """Run a command in this process, after a suite the charts too. Return its exit code."""
    if name not in READERS and not paths.OUTPUT.exists():
        files.write(paths.OUTPUT / ".gitignore", "*\n")
        print(f"{paths.OUTPUT.absolute()}: results, charts and patches", flush=True)
    if name not in COMMANDS:
        sys.argv[1:] = words
        runpy.run_module(ladder.get(name).module, run_name="__main__", alter_sys=True)
        return 0

    module_name, *first_words = COMMANDS[name].split()
    module = importlib.import_module(module_name)
    sys.modules["__main__"].__doc__ = module.__doc__  # run_command prints its line Next:
    code = module.main(*first_words, *words) or 0
    if not first_words or code > 1:
        return code

    parser = command_line.Parser("plots", "", *command_line.SELECTION, "plotsprefix")
    chosen, _ = parser.parse_known_args(words)
    values = {name: getattr(chosen, name) for name in chosen.explicit}
    return run("plots", command_line.as_flags(values)) or code


if __name__ == "__main__":
    run_command("stepladder", main)

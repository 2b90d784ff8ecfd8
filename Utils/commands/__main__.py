"""Run a command: python -m Utils.commands NAME [SETTING=value ...]."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"{sys.executable} is older than Python 3.11; set PYTHON to a newer one")

import importlib
import os
from pathlib import Path

from Utils.base.command_line import OF_A_RUN, OF_SOME_SCRIPTS, SELECTION, Parser, check
from Utils.base.errors import UserError, one_line

OF_A_SUITE = (*OF_A_RUN, "timeout", "precision", "all")
OF_AN_OWN_SCRIPT = ("base", "without", "args", "folder", "base_python", "writes")
OF_ANY_SCRIPT = (*OF_A_RUN, *OF_SOME_SCRIPTS)
SETTINGS = {  # of each command that has any
    "ablate": (*OF_A_SUITE, *OF_AN_OWN_SCRIPT, "plotsprefix", "t"),
    "adopt": (*OF_A_RUN, *OF_AN_OWN_SCRIPT, "script"),
    "ceilings": ("device",),
    "compare": ("a", "b", "plotsprefix"),
    "ddp": (*OF_ANY_SCRIPT, "t", "gpus"),
    "diff": ("t", "without"),
    "doctor": (*OF_A_RUN, "json"),
    "field_report": SELECTION,
    "forecast": (*OF_A_RUN, "t", "memory", "tokens", "prices", "base"),
    "init_results": ("results_file",),
    "new": ("t", "parent"),
    "profile": (*OF_ANY_SCRIPT, *OF_AN_OWN_SCRIPT, "plotsprefix", "t", "cpu", "memory", "gpus"),
    "recipe": (*SELECTION, "recipe"),
    "report": (*SELECTION, "price", "report", "a", "b"),
    "reset": ("results_file",),
    "scaling": (*OF_ANY_SCRIPT, "plotsprefix", "t", "gpus"),
    "submit": (*SELECTION, "check"),
    "suite": (*OF_A_SUITE, *OF_AN_OWN_SCRIPT),
    "table": (*SELECTION, "price", "all"),
    "together": (*OF_A_RUN, "timeout", "t", "n"),
}
RUNNING = ("ablate", "ddp", "scaling", "suite", "together")  # scripts, with the settings as given


def main(command="help", *words):
    """Run a command. Return its exit code."""
    name = command.replace("-", "_")
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    if name not in names:
        raise UserError(f"there is no such command; choose {', '.join(names)}")
    module = importlib.import_module(f"Utils.commands.{name}")
    parser = Parser(command, module.__doc__, *SETTINGS.get(name, ()))
    if name == "ceilings":
        parser.add_argument("--again", action="store_true", help="measure again")
    elif name == "forecast":
        help = "else T, else the ladder"
        parser.add_argument("names", nargs="*", metavar="TECHNIQUE", help=help)
    elif name == "profile":
        parser.add_argument("name", nargs="?", default="", help="the same as T")
        help = "output folder, else profiles/ beside the results file"
        parser.add_argument("--output", type=Path, help=help)
    elif name == "suite":
        parser.add_argument("names", nargs="*", metavar="TECHNIQUE", help="else the ladder")
        help = "before, measure the ceilings of this device and estimate the duration"
        parser.add_argument("--announced", action="store_true", help=help)
    args = parser.parse_args(words)
    if name in RUNNING:
        check(args)
    return module.main(args)


if __name__ == "__main__":
    code = 0
    with one_line(sys.argv[1] if len(sys.argv) > 1 else "help"):
        try:
            code = main(*sys.argv[1:])
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has closed the pipe, as head does
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)

"""Run a command: .venv/bin/python -m Utils.commands NAME [SETTING=value ...]."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"{sys.executable} is older than Python 3.11; set PYTHON to a newer one")

import importlib

from Utils.base.command_line import (
    ALL_SCRIPT_SETTINGS,
    RUN_SETTINGS,
    SELECTION,
    USER_SCRIPT_SETTINGS,
    Parser,
    check,
)
from Utils.base.errors import run_command, unknown

SUITE_SETTINGS = (*RUN_SETTINGS, "timeout", "precision", "all", "t", *USER_SCRIPT_SETTINGS)
SETTINGS = {  # names of each command's settings
    "ablate": (*SUITE_SETTINGS, "plotsprefix"),
    "ceilings": ("device",),
    "compare": ("a", "b", "base", "plotsprefix"),
    "ddp": (*ALL_SCRIPT_SETTINGS, "t", "gpus"),
    "diff": ("t", "without"),
    "help": (),
    "init_results": ("results_file",),
    "recipe": (*SELECTION, "recipe"),
    "report": (*SELECTION, "price", "report"),
    "reset": ("results_file",),
    "suite": SUITE_SETTINGS,
    "table": (*SELECTION, "price", "all"),
}


def main(command="help", *words):
    """Run a command. Return its exit code."""
    name = command.replace("-", "_")
    if name not in SETTINGS:
        raise unknown("there is no such command", name, SETTINGS)

    module = importlib.import_module(f"Utils.commands.{name}")
    parser = Parser(command, module.__doc__, *SETTINGS[name])
    if name == "help":
        parser.add_argument("--all", action="store_true", help="print all")
        parser.add_argument("--target", help="a target that does not exist")
    elif name == "ceilings":
        parser.add_argument("--again", action="store_true", help="measure again")
    elif name == "suite":
        parser.add_argument("names", nargs="*", metavar="TECHNIQUE", help="default: the ladder")
        help = "before, measure the ceilings of this device and estimate the duration"
        parser.add_argument("--announced", action="store_true", help=help)
    args = parser.parse_args(words)
    if "steps" in SETTINGS[name]:  # it runs scripts, with the settings as they are
        check(args)
    sys.modules["__main__"].__doc__ = module.__doc__  # run_command prints its line Next:
    return module.main(args)


if __name__ == "__main__":
    run_command(sys.argv[1] if len(sys.argv) > 1 else "help", main)

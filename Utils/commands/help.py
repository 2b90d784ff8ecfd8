"""Print the targets of the Makefile, the techniques and the variables."""

from Utils.base import command_line
from Utils.scripts import ladder


def main(args):
    for section, targets in command_line.targets().items():
        print(f"\n{section}")
        for name, help in targets.items():
            print(f"  {name:20} {help}")

    print("\nTechniques, each a target of its name")
    for technique in ladder.techniques().values():
        print(f"  {technique.name:20} {technique.headline}")

    print("\nVariables, as in make all ROUNDS=3 STEPS=100")
    for settings in command_line.variables().values():
        for text, help in settings.items():
            print(f"  {text:24} {help}")

    print("\nPYTHON=python3 uses an existing environment; without it, .venv is created.")

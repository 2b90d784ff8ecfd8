"""Copy a technique's script under a new name, to change one idea in the copy.

T=my_idea writes my_idea.py. T=memory/my_idea writes beyond/memory/my_idea.py and a test for it.
"""

from tools.new_technique import skeleton
from Utils.base.command_line import Parser
from Utils.base.errors import run_command

NEXT = """\
{script} is a copy of {parent}.
next: change one idea in it and fill in its docstring, then

  make diff T={name}
  make {name}
  make all T="{parent} {name}" ROUNDS=4

show the change, run it, and measure it against {parent}."""
CONTRIBUTE = """
To contribute it, fill in
{test}, then

  git add {script} {test}
  make readme
  make lint test"""


def main(*words):
    args = Parser("new", __doc__, "t", "parent").parse_args(words)
    script, *tests = skeleton.write(args.t, args.parent)
    name = args.t.rpartition("/")[2]
    print(NEXT.format(script=script, name=name, parent=args.parent))
    for test in tests:
        print(CONTRIBUTE.format(script=script, test=test))


if __name__ == "__main__":
    run_command("new", main)

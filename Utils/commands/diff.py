"""Print the docstring of a technique, and its code's diff against its parent's.

WITHOUT=NAME prints the variant without that technique, as a diff against the technique.
"""

from Utils.base.command_line import Parser
from Utils.scripts import diffs, ladder, variants


def main(*words):
    args = Parser("diff", __doc__, "t", "without").parse_args(words)
    repository = ladder.repository()
    name = args.t and "-".join([args.t, *args.without.split()])
    technique = variants.find(name, repository)
    print(technique.doc)

    if technique.parent is None:
        print(technique.code.strip("\n"))
        return

    print(*diffs.diff(technique, repository.get(technique.parent)), sep="\n")

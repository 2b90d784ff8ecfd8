"""Write the generated parts of README.md, docs/ and results/, and docs/gpus.png.

Their sources are rows, docstrings, parsers and published figures.

Next: make lint test
"""

from tools.docs import doc_pages
from Utils.base.command_line import Parser
from Utils.base.errors import run_command


def main(*words):
    Parser("readme", __doc__).parse_args(words)
    print(*doc_pages.write(), sep="\n")


if __name__ == "__main__":
    run_command("readme", main)

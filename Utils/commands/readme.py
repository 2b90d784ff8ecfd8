"""Write the generated parts of README.md, docs/ and results/, and docs/gpus.png, from rows,
docstrings, parsers and figures."""

from Utils.analysis import submission
from Utils.draw import doc_pages


def main(args):
    print(*doc_pages.write(), *submission.write_pages(), sep="\n")

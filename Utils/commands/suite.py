"""Run many scripts in many rounds."""

import sys

from Utils.base import errors
from Utils.launch import suite

if __name__ == "__main__":
    with errors.one_line("suite"):
        sys.exit(suite.main(sys.argv[1:]))

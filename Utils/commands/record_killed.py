"""Record a run that was killed before it could record itself.

python -m Utils.commands.record_killed NAME REASON [flags of the script]
"""

import sys

from Utils.base.errors import one_line
from Utils.harness import ends
from Utils.harness.settings import parse_args

if __name__ == "__main__":
    name, reason, *flags = sys.argv[1:]
    with one_line(name):
        ends.record_end(parse_args("", flags, name), "failed", reason)

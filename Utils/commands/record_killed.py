"""Record a run that was killed before it could say why."""

import sys

from Utils.harness import ends
from Utils.run import parse_args

if __name__ == "__main__":  # python -m Utils.run NAME REASON flags: records a run that died mutely
    name, reason, *flags = sys.argv[1:]
    ends.record_ended(parse_args("", flags, name), "failed", reason)

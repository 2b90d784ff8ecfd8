"""Record a run that was killed before it could record itself.

python -m Utils.launch.record_killed NAME REASON [flags of the script]
"""

import sys
from contextlib import suppress

from Utils.base.errors import UserError, one_line
from Utils.harness import exits
from Utils.harness.settings import parse_args
from Utils.scripts import variants

if __name__ == "__main__":
    name, reason, *flags = sys.argv[1:]
    doc = source = ""
    with one_line(name):
        with suppress(UserError, OSError):  # the script is gone
            technique = variants.find(name)
            doc, source = technique.doc, technique.path.read_text()
        exits.record_end(parse_args(doc, flags, name, source), "failed", reason)

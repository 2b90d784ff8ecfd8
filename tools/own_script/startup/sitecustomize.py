"""Import patched sources in a process that a patched script has started.

Python runs the first sitecustomize of its path when it starts. This one runs the next one, too.
"""

import importlib.util
import os
import sys
from pathlib import Path

folder = Path(__file__).parent
spec = importlib.util.spec_from_file_location("_patched", folder.with_name("patched_sources.py"))
patched_sources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(patched_sources)
patched_sources.install(os.environ[patched_sources.VARIABLE])

sys.path.remove(str(folder))
this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError:
    sys.modules["sitecustomize"] = this

"""Progress on stderr: a bar with lines above it on a terminal."""

import re
import sys

from Utils.base.progress_display import ProgressDisplay


def test_display_has_lines_above_its_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with ProgressDisplay("title", 3) as display:
        display.show_steps(2, "loss 1.5")
        display.say("a line")
    bars = r"\rtitle .* 2/3 , loss 1.5 .*\r +\ra line\n\rtitle .* 2/3 , loss 1.5 .*\r +\r$"
    assert re.search(bars, capsys.readouterr().err)

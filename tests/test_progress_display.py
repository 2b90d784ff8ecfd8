"""Progress on stderr, on a terminal: nothing but the bar of rank 0, and lines above it."""

import re
import sys

from Utils.base.progress_display import ProgressDisplay


def test_display_of_rank_0_is_as_wide_as_a_table_and_has_lines_above_it(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for rank in range(2):
        with ProgressDisplay("title", 3, is_hidden=rank > 0) as display:
            display.say("a line")
            display.show_steps(2, "loss 1.5")

    lines = re.split("[\r\n]", capsys.readouterr().err)
    assert lines.count("a line") == 1 and max(map(len, lines)) == 99
    assert re.search("title .* 2/3 , loss 1.5", lines[-3])

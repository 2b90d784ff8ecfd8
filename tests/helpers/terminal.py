"""A command's output as in a terminal."""

from Utils.commands import __main__ as commands


def printed(capsys, monkeypatch, *words, columns=100, command=commands.main):
    """Run a command. Return what it prints to a terminal with these columns, bold texts in *."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    command(*words)
    text = capsys.readouterr().out.replace(" \033[1m", "*")
    return text.replace("\033[0m ", "*").replace("\033[0m", "*")

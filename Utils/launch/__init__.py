"""Starts of runs: suites, ranks of one run, several at once, trials of a batch size.
Imports what a script imports, analysis and what is below; no draw or commands."""

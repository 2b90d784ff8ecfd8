"""Starts of runs: suites, ranks of one run, several at once, trials of a batch size.

Imports what a script imports, the layers below and Utils.analysis; no diagnose, draw or commands.
"""

"""What starts runs: a suite of them, the ranks of one, several at once, trials of a batch.

Imports what a script imports, the layers below and Utils.analysis; no diagnose, draw or commands.
"""

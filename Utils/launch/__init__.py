"""Start of runs: suites of a ladder, turns, ranks of one run.

Imports what a script imports, analysis and what is below; neither draw nor commands.
"""

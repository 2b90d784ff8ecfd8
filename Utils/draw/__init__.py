"""Charts, one file each, and the page of a results file, which holds the same charts.

Imports analysis, the names of kinds of work in device, and what is below them, and nothing that
runs or launches a script.
"""

"""Charts, one file each, and the page of a results file, which holds the same charts.

Imports analysis and what is below it; nothing that knows a device or runs a script.
"""

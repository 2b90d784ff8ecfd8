"""Charts, one file each, and the page of a results file.

Imports analysis and what is below it, and nothing that runs or launches a script.
"""

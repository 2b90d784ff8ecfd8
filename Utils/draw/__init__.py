"""Charts, one file each, and the page of a results file.

Imports Utils.base and Utils.analysis, and nothing that runs, launches or diagnoses a script.
"""

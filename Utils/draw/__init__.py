"""Charts, one file each, and the page of a results file, which holds the same charts.
Imports analysis, kinds of work in device, what is below them, and nothing that runs a script."""

"""results.csv and records: append, read, select.
Imports Utils.base and Utils.scripts, and no torch."""

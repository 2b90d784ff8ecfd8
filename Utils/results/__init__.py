"""results.csv and records: append, read, choose a study.

Imports base and scripts, and no torch.
"""

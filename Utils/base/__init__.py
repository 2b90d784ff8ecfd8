"""Shared by all layers: errors, flags, model sizes, scripts and their diffs, the results file.

Imports nothing of the project, and no torch.
"""

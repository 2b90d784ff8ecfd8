"""What all layers share: errors, flags, sizes, scripts and their diffs, the results file.

Imports nothing of the project, and no torch.
"""

"""Scripts as data: facts of a docstring, diffs, merges, variants; ladders.

Imports base, and no torch.
"""

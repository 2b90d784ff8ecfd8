"""Scripts as data: facts of a docstring, order, diffs, merges, variants.
Imports Utils.base, and no torch."""

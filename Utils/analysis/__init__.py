"""A study in, values and texts out: intervals, tables, comparisons, recipes.

Imports base, scripts and results. Neither prints nor exits.
"""

"""Rows of results.csv -> values and texts: selection, intervals, tables, comparisons, recipes.

Imports base alone; never draw, launch or commands. Neither prints nor exits.
"""

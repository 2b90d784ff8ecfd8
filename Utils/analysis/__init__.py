"""Rows of results.csv -> values and texts: intervals, tables, comparisons, recipes.
Imports base, scripts and results. Neither prints nor exits."""

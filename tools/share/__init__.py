"""Rows for others: folders of results/, written and checked, and a report to paste into an issue.

Imports results and analysis, and what is below them; no other tool.
"""

"""A new technique: a copy of a script, and a test, both to fill in.

Imports base and scripts.
"""

"""Texts of a corpus, and their tokens.

Imports base, and neither torch nor anything that knows of a device or a run.
"""

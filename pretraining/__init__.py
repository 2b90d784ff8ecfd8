"""A full training run: a large corpus, checkpoints, validation, export.

May import Utils, whose techniques are merged into the loop of train.py. Nothing imports it.
"""

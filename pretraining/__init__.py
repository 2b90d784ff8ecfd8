"""A training run that one keeps: data at size, checkpoints, validation, export.

May import Utils, whose techniques are merged into the loop of train.py. Nothing imports it.
"""

"""Shared by all layers: errors, texts, paths, files, flags, sizes of GPT-2.

Imports nothing of the project, and no torch.
"""

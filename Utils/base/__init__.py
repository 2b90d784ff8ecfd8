"""Shared by all layers: errors, texts, paths, flags, forks, sizes of GPT-2.
Imports nothing of the project, and no torch."""

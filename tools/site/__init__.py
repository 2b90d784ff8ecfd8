"""The static page for choosing a GPU: its figures, its charts, its files.

Imports analysis, what is below it, and the figures of tools/docs and tools/forecast; no torch.
"""

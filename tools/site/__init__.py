"""The static page for choosing a GPU: its figures, its charts, its files.

Imports analysis, what is below it, and tools/docs; nothing that runs or launches.
"""

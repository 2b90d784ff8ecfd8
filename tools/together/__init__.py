"""Several processes of one script at once on one device, compared with one alone.

Imports the core; no other tool.
"""

"""Memory and time of a step before it has run, here or on a GPU that is elsewhere.

Imports what a script imports, analysis and what is below; no other tool.
"""

"""Two sides as a pair: commits, versions of a package or environments, measured in turns.

Imports the core and own_script.
"""

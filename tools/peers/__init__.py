"""Other people's training loops, unchanged, in turns with ours.

Imports the core, own_script and pair.
"""

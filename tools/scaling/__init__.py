"""How the speed of a distributed script grows with the number of GPUs, or cores.

Imports the core; no other tool.
"""

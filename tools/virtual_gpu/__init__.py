"""A virtual GPU, on which the CUDA path runs where there is no GPU; README.md says how far.

Imports base, results and scripts, since what is tested runs as commands.
"""

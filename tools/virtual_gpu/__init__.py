"""A virtual GPU that runs the CUDA path on machines without a GPU; see README.md for its limits.

Imports base, results, scripts and the forecast, since what is tested runs as commands.
"""

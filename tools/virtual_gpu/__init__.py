"""A virtual GPU, on which the CUDA path runs where there is no GPU; README.md says how far.
May import Utils.base; nothing else of the project, since what is tested runs as commands."""

"""Results to share: a submission in one file, and the collection of those unpacked in results/.

Imports base and analysis; never launch or commands. Neither prints nor exits.
"""

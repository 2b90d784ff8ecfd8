"""Results to share: submissions in one file, and the collection of unpacked ones in results/.

Imports base and analysis; never launch or commands. Neither prints nor exits.
"""

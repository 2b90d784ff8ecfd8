"""What a script imports, and what turns its rows into answers.

May import none of the scripts, and names no tool.
"""

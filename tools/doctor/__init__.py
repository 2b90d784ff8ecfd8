"""Checks of which techniques run here, and why others do not.

Imports harness and what is below it; neither analysis nor another tool.
"""

"""A script and a test to fill in, for who adds a technique.

Imports scripts and base.
"""

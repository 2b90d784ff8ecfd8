"""One file a target of the Makefile: parse, call, print.

Imports every layer; nothing imports it.
"""

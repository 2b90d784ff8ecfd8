"""Forecasts of a step's memory and time, for this device or a GPU that is not here.

It may import what a script imports, analysis and the layers below; no other tool.
"""

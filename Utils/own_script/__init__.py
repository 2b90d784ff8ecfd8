"""A training script of the user's, unchanged: its steps watched, techniques as switches.

Imports base, device and harness; no pandas, scipy, matplotlib, tqdm, tiktoken or pynvml.
"""

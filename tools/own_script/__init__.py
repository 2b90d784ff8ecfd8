"""A user's training script, unchanged: its steps watched, techniques as switches.

May import harness, device, scripts, results and base; no pandas, scipy, matplotlib or tqdm.
"""

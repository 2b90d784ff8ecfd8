"""A user's training script, unchanged: its steps watched, techniques as switches.

The measured process imports harness and what is below; no pandas, scipy, matplotlib or tqdm.
What launches it imports launch as well.
"""

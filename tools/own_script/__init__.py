"""Measure a user's training script without changing it, with techniques as switches.

The measured process imports harness and what is below; no pandas, scipy, matplotlib or tqdm.
Its launcher imports launch as well.
"""

"""Fewer waits and launches, tuned kernels."""

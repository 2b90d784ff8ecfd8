"""Fewer waits and kernel launches, tuned kernels."""

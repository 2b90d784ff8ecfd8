"""Other kernels of attention."""

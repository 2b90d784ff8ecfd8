"""Several techniques at once."""

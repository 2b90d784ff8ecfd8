"""More room: less kept for the backward pass, smaller or moved optimizer states."""

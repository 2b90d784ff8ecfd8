"""What several test files use: rows, processes, stand-ins for hardware, a browser."""

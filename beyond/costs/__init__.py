"""What a guarantee or a habit costs."""

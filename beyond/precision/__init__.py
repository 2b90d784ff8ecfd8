"""Other number formats, and what they do to the loss."""

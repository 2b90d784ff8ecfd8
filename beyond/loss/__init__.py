"""The head and the loss: logits of 50,257 columns."""

"""Half precision for GPUs without bfloat16."""

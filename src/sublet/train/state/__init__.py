"""All that a checkpoint keeps: of a training, and of its script."""

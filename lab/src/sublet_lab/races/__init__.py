"""Many writers of checkpoints to one bucket over a bad line: seeds, and laws that hold after every request."""

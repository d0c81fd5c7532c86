"""Who wins when many write checkpoints to one bucket over a bad line: seeds, and laws that hold after every request."""

"""Checkpoints: copied to host memory, written behind the loop, committed whole or not at all."""

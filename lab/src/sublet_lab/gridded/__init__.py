"""Grids of real processes beside the simulator: a study, and a rival that restarts from checkpoints."""

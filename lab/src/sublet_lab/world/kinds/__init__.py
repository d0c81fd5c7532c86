"""Kinds of faults, by their target: clouds, machines, workers; those of controllers and lines are in `faults`."""

"""Kinds of faults, by what they strike: clouds, machines, workers; those of controllers and lines are in `faults`."""

"""The cost of checkpoints to training: one rule for the model, the controller and the worker that writes them."""

from __future__ import annotations

DRAG = 0.2  # of the speed of training, lost while a copy is written beside it: digests, memory and network are shared
MOST_SLOWDOWN = 0.02  # of a job by all its checkpoints, unless its owner says how often


def cost_of_write(blocked_s: float, write_s: float) -> float:
    """Seconds of training that a copy costs: those that it stands still for, and what the rest drags beside it.

    >>> cost_of_write(0.5, 10.5)
    2.5
    """
    return blocked_s + DRAG * max(write_s - blocked_s, 0.0)


def least_interval_s(blocked_s: float, write_s: float, most_slowdown: float) -> float:
    """No more often than that, if training is to be slowed by no more than so much.

    >>> least_interval_s(0.5, 10.5, 0.02)
    125.0
    """
    return cost_of_write(blocked_s, write_s) / most_slowdown

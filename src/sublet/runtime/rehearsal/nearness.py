"""How far two numbers, or two states of a parameter, are apart, and how far they may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["Allowance", "apart", "weights_apart"]

RNG = 3.0  # times the effect of other random numbers
CHAOS, CHAOS_MOST = 20.0, 1e-4  # times what a rounding grows to, as long as it stays one
SUM = 8.0  # a sum of many is that much less exact than they are


@dataclass(frozen=True, slots=True)
class Allowance:
    """The allowed difference."""

    rounding: float

    def of(self, noise: float) -> float:
        """The allowance where random numbers make so much of a difference."""
        return max(self.rounding, RNG * noise, min(CHAOS * noise, CHAOS_MOST))


def apart(one: float, two: float) -> float:
    """As a part of the larger."""
    if one == two or (math.isnan(one) and math.isnan(two)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(two)):
        return math.inf
    return abs(one - two) / max(abs(one), abs(two))


def weights_apart(one: np.ndarray, two: np.ndarray) -> float:
    """Two states of a parameter (`Step.weights`), as a part of its length."""
    if one.shape != two.shape:
        return math.inf
    if np.array_equal(one, two, equal_nan=True):
        return 0.0
    if not (np.isfinite(one).all() and np.isfinite(two).all()):
        return math.inf
    length, some = max(one[1], two[1]), max(float(np.linalg.norm(one[2:])), float(np.linalg.norm(two[2:])))
    found = [abs(one[0] - two[0]) / SUM / length, abs(one[1] - two[1]) / length]
    return float(max(*found, np.linalg.norm(one[2:] - two[2:]) / some if some else 0.0))

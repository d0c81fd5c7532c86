"""Below so many samples a micro-batch takes no less: the device waits for the host, or is not filled.

    seconds = alpha + beta x max(samples, least),   alpha, beta >= 0

For a given `least` this is a least squares of two unknowns. As `least` moves between two sizes that were measured, all
below it lie on one level, and the best level and line are independent of each other. So the best `least` of all is one
of these sizes, or where such a level meets its line.
"""

from __future__ import annotations

import numpy as np

from sublet.solve.arrays import Floats

__all__ = ["least_samples"]

ON_LINE = 3  # sizes at least: two are on a line whatever they are
SURE = 9.0  # so much better, in squared errors, than a line through all: three standard errors


def least_samples(local: Floats, piece_s: Floats, error: Floats) -> float:
    """Samples below which a micro-batch takes no less; 0 where the rows do not show it. O(rows x sizes)."""
    weight = 1.0 / (piece_s * error)
    sizes = np.unique(local)
    if len(sizes) <= ON_LINE:
        return 0.0
    found = [(_misfit(local, piece_s, weight, least), least) for least in _candidates(local, piece_s, weight, sizes)]
    if not found:
        return 0.0
    best, least = min(found)
    plain = _misfit(local, piece_s, weight, 0.0)
    scatter = max(1.0, best / max(1, len(local) - 3))  # rows may be further off than they say: other things differ too
    return least if plain - best >= SURE * scatter else 0.0


def _candidates(local: Floats, piece_s: Floats, weight: Floats, sizes: Floats) -> list[float]:
    found = []
    for at in range(1, len(sizes) - ON_LINE + 1):
        low, high = float(sizes[at - 1]), float(sizes[at])
        found.append(high)
        below = local <= low
        alpha, beta = _line(local[~below], piece_s[~below], weight[~below])
        level = float(np.average(piece_s[below], weights=weight[below] ** 2))
        if beta > 0.0 and low < (level - alpha) / beta < high:
            found.append((level - alpha) / beta)
    return found


def _misfit(local: Floats, piece_s: Floats, weight: Floats, least: float) -> float:
    above = np.maximum(local, least)
    alpha, beta = _line(above, piece_s, weight)
    return float(np.sum((weight * (alpha + beta * above - piece_s)) ** 2))


def _line(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    """The line alpha + beta x with the least weighted squares: both, neither below 0."""
    w = weight**2
    total, mean_x, mean_y = float(np.sum(w)), float(np.average(x, weights=w)), float(np.average(y, weights=w))
    spread = float(np.sum(w * (x - mean_x) ** 2))
    beta = float(np.sum(w * (x - mean_x) * (y - mean_y))) / spread if spread > 1e-12 * total * mean_x**2 else 0.0
    if beta <= 0.0:
        return mean_y, 0.0
    if mean_y - beta * mean_x < 0.0:
        return 0.0, float(np.sum(w * x * y) / np.sum(w * x * x))
    return mean_y - beta * mean_x, beta

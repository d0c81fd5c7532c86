"""Phases from the trend of the gradient noise: late ones are noisier, so that larger batches, and more GPUs, gain more.

The noise at sample s is n exp(g (s - s0)), with a cap: what grew so far does not grow for ever. The rest of the job is
cut into a few pieces in which it grows by less than half each, and each has the noise of its middle.
"""

from __future__ import annotations

import math

from sublet.domain.quantity import positive

MOST_GROWTH = 8.0  # times what it is now: there are no measurements further on
STEP = 1.5  # by which it grows in a piece, at most, while the pieces last
PIECES = 8
FASTEST = 100.0  # of the logarithm over a whole job: what is told beyond it is chance
TRIFLE = 1.25  # a growth by less until the end makes no phases


def noise_phases(noise: float, growth: float, at: float, goal: float) -> tuple[tuple[float, float], ...]:
    """(progress at which it ends, noise) of each piece of the work from `at` to `goal`; () if there is no telling.

    `growth` is that of the logarithm of the noise per unit of work. The first piece is that of all before it, too.
    """
    positive("goal", goal)
    growth = min(growth, FASTEST / goal) if growth > 0.0 else 0.0  # NaN is none
    grows = min(growth * (goal - at), math.log(MOST_GROWTH))
    if noise <= 0.0 or grows < math.log(TRIFLE):
        return ()
    until = at + grows / growth  # from here on it stays
    pieces = min(PIECES, math.ceil(grows / math.log(STEP)))
    part = (until - at) / pieces
    found = [(at + part * (piece + 1), noise * math.exp(grows * (piece + 0.5) / pieces)) for piece in range(pieces)]
    if until < goal * (1.0 - 1e-9):
        return (*found, (goal, noise * math.exp(grows)))
    return (*found[:-1], (goal, found[-1][1]))

"""The forecaster to use when in doubt: the supply stays, until another forecaster has proved to be better.

Others forecast beside it on paper, once every `horizon` ticks, so that no tick is judged twice. For each step ahead, a
forecaster is followed that has erred less than persistence over the last blocks by three standard errors of the mean.
Among several it is the one that gained most; there is none while there are fewer than 20 blocks. Only ticks that have
passed have a say.

Its possible loss is bounded: proof takes gains of at least 2.9 times the largest single loss among the same blocks, so
one loss that is not small against all that was gained ends it. Nothing is lost without skill: there it is persistence,
to the last digit. A market that rewards a forecaster for days and then turns can cost the blocks until the turn is
seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.quantity import positive, whole
from sublet.market.forecast import Forecaster, asked_for, bounded
from sublet.solve.arrays import Floats, Ints
from sublet_lab.forecasting.arima import Autoregression
from sublet_lab.forecasting.markov import Kernel
from sublet_lab.forecasting.simple import Drift

CANDIDATES: tuple[Forecaster, ...] = (Kernel(), Autoregression(), Autoregression(changes=True), Drift())
RIDES = 32  # histories that are remembered, such as one per zone


@dataclass(frozen=True, slots=True, kw_only=True)
class Skilled:
    """Persistence, unless another forecaster has been clearly better of late."""

    most: int | None = None
    candidates: tuple[Forecaster, ...] = CANDIDATES
    horizon: int = 12  # ticks ahead that are judged; what lies beyond stays as at the last of them
    blocks: int = 120  # that are looked back on: a day of minutes
    least_blocks: int = 20
    proof: float = 3.0  # standard errors

    def __post_init__(self) -> None:
        whole("most", 0 if self.most is None else self.most)
        whole("horizon", self.horizon, 1)
        whole("least_blocks", self.least_blocks, 2)
        whole("blocks", self.blocks, self.least_blocks)
        positive("proof", self.proof)

    def forecast(self, history: Floats, steps: int) -> Floats:
        """Each step from the forecaster that is trusted with it."""
        asked_for(history, steps)
        judged = min(steps, self.horizon)
        ahead = np.full(steps, history[-1], dtype=np.float64)
        trusted_H = _choose_trusted(self, self._gains(history))[:judged]
        for who in set(trusted_H.tolist()) - {NOBODY}:
            theirs_H = self.candidates[who].forecast(history, self.horizon)[:judged]
            ahead[:judged] = np.where(trusted_H == who, theirs_H, ahead[:judged])
        ahead[judged:] = ahead[judged - 1]
        return bounded(ahead, self.most)

    def _gains(self, history: Floats) -> Floats:
        """By candidate, block and step: how much less than persistence each erred in the last blocks."""
        now = len(history) // self.horizon
        paper = _paper(self, history[: self.horizon].tobytes())
        blocks = range(max(1, now - self.blocks), now)
        return paper.gains(self, history, blocks)


NOBODY = -1


def _choose_trusted(of: Skilled, gain_CBH: Floats) -> Ints:
    """The forecaster trusted with each step: its place among the candidates, or none."""
    _, blocks, horizon = gain_CBH.shape
    if blocks < of.least_blocks:
        return np.full(horizon, NOBODY)
    mean_CH, sigma_CH = gain_CBH.mean(axis=1), gain_CBH.std(axis=1)
    proved_CH = (mean_CH > 0) & (mean_CH * np.sqrt(blocks) >= of.proof * sigma_CH)
    best_H = np.where(proved_CH, mean_CH, 0.0).argmax(axis=0)
    return np.where(proved_CH.any(axis=0), best_H, NOBODY)


class _Paper:
    """A cache for one history, so that a tick more costs a block at most; it never changes an answer."""

    def __init__(self) -> None:
        self._history = np.zeros(0)
        self._gain_CH: dict[int, Floats] = {}

    def gains(self, of: Skilled, history: Floats, blocks: range) -> Floats:
        """Every candidate's gain in every one of the blocks."""
        self._forget_all_but(history, of.horizon, blocks.start)
        for block in blocks:
            if block not in self._gain_CH:
                self._gain_CH[block] = _gain(of, history, block * of.horizon)
        if not blocks:
            return np.zeros((len(of.candidates), 0, of.horizon))
        return np.stack([self._gain_CH[block] for block in blocks], axis=1)

    def _forget_all_but(self, history: Floats, horizon: int, first: int) -> None:
        """Blocks that this history has too, and that are not long past."""
        shared = min(len(self._history), len(history))
        differs = np.flatnonzero(self._history[:shared] != history[:shared])
        known = (int(differs[0]) if len(differs) else shared) // horizon
        self._gain_CH = {block: gain for block, gain in self._gain_CH.items() if first <= block < known}
        self._history = history.copy()


@lru_cache(maxsize=RIDES)
def _paper(of: Skilled, start: bytes) -> _Paper:  # noqa: ARG001 - both are the key: histories that start alike share
    return _Paper()


def _gain(of: Skilled, history: Floats, now: int) -> Floats:
    known, truth_H = history[:now], history[now : now + of.horizon]
    still_H = np.abs(known[-1] - truth_H)
    theirs_CH = [bounded(each.forecast(known, of.horizon), of.most) for each in of.candidates]
    return np.array([still_H - np.abs(theirs_H - truth_H) for theirs_H in theirs_CH]).reshape(-1, of.horizon)

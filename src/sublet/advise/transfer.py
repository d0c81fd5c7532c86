"""How long a step takes on a kind of GPU where this model was never run, from where it was and from other models.

If other models ran on both kinds, their ratio is taken: the median over models, separately for one GPU, one node and
several nodes, and for small, middle and large batches. Launch overhead and the network do not shrink with the GPU.
Facts about the GPUs (`ratio_from_facts`) have two votes among them, and are all there is where no model ran on the
kind. A model that gains more than others from one faster kind gains more from the next. The ratio is stretched by how
much its times differ between the kinds on which it ran, as far as it can be told from so few.

>>> def measured(slope):
...     confs = np.array([[1.0, 1.0, 8.0], [1.0, 1.0, 64.0]])
...     return Measured(confs, slope * confs[:, 2], lambda at: slope * at[:, 2])
>>> shelf = {("a", "T4"): measured(4.0), ("a", "L4"): measured(2.0), ("b", "T4"): measured(3.0)}
>>> Transfer(shelf).step_s("b", "L4", np.array([[1.0, 1.0, 8.0], [1.0, 1.0, 64.0]])).round(6).tolist()
[12.0, 96.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from sublet.domain.offer import Gpu
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats, Ints

# K kinds on which the model ran, R rows of (nodes, GPUs, local batch)

BATCHES = 3  # small, middle and large
FACTS_VOTES = 2  # this and HOLD were chosen on the pairs that `sublet study deepvm` predicts, so it flatters them:
HOLD = 0.3  # its notes say what they err when chosen elsewhere. In squared logarithms: two kinds a factor of two apart
STRETCHES = (0.2, 2.0)
# Least squares on the logarithms of single-GPU step times of 13 models on 7 kinds (Sia, Gavel), robust against
# outliers: doubling the fp16 rate saves 8 %, doubling the bandwidth of memory 34 %.
FP16_POWER, BANDWIDTH_POWER = 0.12, 0.59
NO_FACTS: Mapping[str, Gpu] = MappingProxyType({})
PREDICTED_SPREAD = 0.5  # of the logarithm; the notes of `sublet study deepvm` say how many pairs lie within p10 to p90


class Measured(NamedTuple):
    """Step times of one model on one kind at some (nodes, GPUs, local batch), and a curve for other such rows.

    The curve says NaN where it does not know.
    """

    confs: Floats
    step_s: Floats
    curve: Callable[[Floats], Floats]


class Transfer:
    """Predictions from a shelf of measurements; ratios are worked out once."""

    __slots__ = ("_gpus", "_hold", "_ranges", "_ratios", "_shelf", "_votes")

    def __init__(
        self,
        shelf: Mapping[tuple[str, str], Measured],
        gpus: Mapping[str, Gpu] = NO_FACTS,
        *,
        votes: int = FACTS_VOTES,
        hold: float = HOLD,
    ) -> None:
        self._shelf, self._gpus, self._votes, self._hold = shelf, gpus, votes, hold
        self._ratios: dict[tuple[str, str, str], Floats] = {}
        self._ranges: dict[str, tuple[float, float]] = {}
        for (model, _), measured in shelf.items():
            local = np.log(np.maximum(measured.confs[:, 2], 1.0))
            low, high = self._ranges.get(model, (math.inf, -math.inf))
            self._ranges[model] = (min(low, float(local.min())), max(high, float(local.max())))

    def step_s(self, model: str, kind: str, confs: Floats) -> Floats:
        """Predicted without any measurement of this model on this kind; NaN where nothing is known.

        Precondition: the model was measured on another kind. Cost: O(rows of the shelf), once for each pair of kinds.
        """
        if model not in self._ranges:
            raise InvalidValue("model", model, "one with measurements: " + ", ".join(sorted(self._ranges)))
        known = [source for of, source in self._shelf if of == model and source != kind]
        if not known:
            return np.full(len(confs), np.nan)
        time_KR = np.array([self._shelf[model, source].curve(confs) for source in known])
        return middle_s(self.carried(model, known, kind, confs, time_KR))

    def carried(self, model: str, sources: Sequence[str], kind: str, confs: Floats, time_KR: Floats) -> Floats:
        """The times of a model on some kinds, each carried over to another kind; `middle_s` makes one of them."""
        regime_R = self._regime(model, confs)
        with np.errstate(invalid="ignore", divide="ignore"):
            log_KR = np.log(time_KR)
        ratio_KR = np.array([self._ratio(source, kind, without=model)[regime_R] for source in sources])
        return np.asarray(np.exp(log_KR + _stretch(log_KR, ratio_KR, self._hold) * ratio_KR))

    def ratio(self, source: str, target: str, without: str) -> float:
        """Time on the target by time on the source with one GPU, by other models and facts; NaN if not known."""
        logs = self._ratio(source, target, without=without)[:BATCHES]
        return float(np.exp(np.median(logs)))

    def ran(self, model: str, sources: Sequence[str], kind: str) -> bool:
        """Whether another model ran on this kind and on one of these, so that facts are not all there is."""
        others = {of for of, on in self._shelf if on == kind and of != model}
        return any((of, source) in self._shelf for of in others for source in sources)

    def _ratio(self, source: str, target: str, *, without: str) -> Floats:
        """Log of time on the target by time on the source, for each regime: the median over the other models."""
        found = [
            self._ratio_of(model, source, target)
            for model, kind in self._shelf
            if kind == target and model != without and (model, source) in self._shelf
        ]
        if source in self._gpus and target in self._gpus:
            facts = math.log(ratio_from_facts(self._gpus[source], self._gpus[target]))
            found += [np.full(3 * BATCHES, facts)] * self._votes
        return _median(np.array(found)) if found else np.full(3 * BATCHES, np.nan)

    def _ratio_of(self, model: str, source: str, target: str) -> Floats:
        key = (model, source, target)
        if key not in self._ratios:
            confs, step_s, _ = self._shelf[model, target]
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio_R = np.log(step_s / self._shelf[model, source].curve(confs))
            known_R = np.isfinite(ratio_R)
            overall = float(np.median(ratio_R[known_R])) if known_R.any() else math.nan
            regime_R = self._regime(model, confs)
            by = [ratio_R[known_R & (regime_R == regime)] for regime in range(3 * BATCHES)]
            self._ratios[key] = np.array([float(np.median(part)) if len(part) else overall for part in by])
        return self._ratios[key]

    def _regime(self, model: str, confs: Floats) -> Ints:
        """0 to 8: one GPU, one node or several, times the third of the range of batches, in logarithms."""
        width_R = np.where(confs[:, 1] == 1, 0, np.where(confs[:, 0] == 1, 1, 2))
        low, high = self._ranges.get(model, (0.0, 0.0))
        if high <= low:
            return np.asarray(width_R * BATCHES, dtype=np.intp)
        share_R = (np.log(np.maximum(confs[:, 2], 1.0)) - low) / (high - low)
        return np.asarray(
            width_R * BATCHES + np.clip((share_R * BATCHES).astype(np.intp), 0, BATCHES - 1), dtype=np.intp
        )


def ratio_from_facts(source: Gpu, target: Gpu) -> float:
    """Compute time on the target by that on the source, from peak rate and memory bandwidth; NaN if not recorded.

    >>> t4 = Gpu(name="T4", vendor="nvidia", mem_gib=16, fp16_tflops=65, mem_bw_gb_per_s=320)
    >>> a100 = Gpu(name="A100", vendor="nvidia", mem_gib=40, fp16_tflops=312, mem_bw_gb_per_s=1555)
    >>> round(ratio_from_facts(t4, a100), 2)
    0.33
    """
    rates = [gpu.fp16_tflops or gpu.fp32_tflops for gpu in (source, target)]
    bandwidths = [gpu.mem_bw_gb_per_s for gpu in (source, target)]
    if not all(rates) or not all(bandwidths):
        return math.nan
    (rate, to_rate), (bandwidth, to_bandwidth) = rates, bandwidths
    assert rate is not None and to_rate is not None  # noqa: S101, PT018 - `all` says so, but not to mypy
    assert bandwidth is not None and to_bandwidth is not None  # noqa: S101, PT018 - as above
    return float((rate / to_rate) ** FP16_POWER * (bandwidth / to_bandwidth) ** BANDWIDTH_POWER)


def middle_s(time_KR: Floats) -> Floats:
    """The median over kinds, in logarithms; NaN where none is known."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.exp(_median(np.log(time_KR))))


def _median(table: Floats) -> Floats:
    """Down the columns, without what is not known."""
    known = np.isfinite(table)
    ordered = np.sort(np.where(known, table, np.inf), axis=0)
    count = known.sum(axis=0)
    at = np.arange(table.shape[1])
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, len(table) - 1)
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, (ordered[low, at] + ordered[high, at]) / 2.0, np.nan)


def _stretch(log_KR: Floats, ratio_KR: Floats, hold: float) -> Floats:
    """How much more this model gains from kind to kind than is usual: a slope, held towards 1 where little is known."""
    known_KR = np.isfinite(log_KR) & np.isfinite(ratio_KR)
    count_R = np.maximum(known_KR.sum(axis=0), 1)
    own_KR, usual_KR = np.where(known_KR, log_KR, 0.0), np.where(known_KR, -ratio_KR, 0.0)
    own_KR = np.where(known_KR, own_KR - own_KR.sum(axis=0) / count_R, 0.0)
    usual_KR = np.where(known_KR, usual_KR - usual_KR.sum(axis=0) / count_R, 0.0)
    slope_R = ((own_KR * usual_KR).sum(axis=0) + hold) / ((usual_KR**2).sum(axis=0) + hold)
    return np.asarray(np.clip(slope_R, *STRETCHES))

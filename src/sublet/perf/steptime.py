"""How long a training step takes: compute that grows with the local batch, and a gradient exchange.

Two closed forms, and a speed at a fixed global batch. `RingStep` is physics (bytes over bandwidth); `PolluxStep` is
seven numbers to be fitted (Qiao et al., OSDI 2021, section 3.2). Measured tables (`measured.py`) have the same verb.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sublet.domain.quantity import at_least, whole
from sublet.domain.shape import Spread
from sublet.errors import InvalidValue
from sublet.perf.speedup import ConstantRate
from sublet.solve.arrays import Floats


class StepTime(Protocol):
    """Step time of one model on one GPU kind."""

    def times(self, spread: Spread, local_C: Floats) -> tuple[Floats, Floats]:
        """Seconds of a step with its gradient exchange, and without, for each local batch; infinite: cannot run."""
        ...


def iteration_s(step: StepTime, spread: Spread, local_C: Floats, accumulation_C: Floats) -> Floats:
    """Seconds between two updates of the weights: the last micro-batch exchanges gradients, those before do not."""
    full_C, compute_C = step.times(spread, local_C)
    with np.errstate(invalid="ignore"):  # 0 steps x infinity; the full step is infinite there anyway
        before_C = np.where(accumulation_C > 0, accumulation_C * compute_C, 0.0)
    return full_C + before_C


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStep:
    """Compute `alpha_s + beta_s * local` plus a ring all-reduce over the slowest link.

    A ring of k GPUs sends 2 (k - 1) messages of 1/k of the gradient each, so the exchange takes
    2 (k - 1) (latency + bytes / (k bandwidth)). The link is the network as soon as two nodes take part.
    """

    alpha_s: float
    beta_s: float  # per sample
    gradient_bytes: float
    intra_bytes_per_s: float  # infinite = no measurable cost
    inter_bytes_per_s: float
    intra_latency_s: float = 0.0
    inter_latency_s: float = 0.0

    def __post_init__(self) -> None:
        _compute_checked(self.alpha_s, self.beta_s)
        at_least("gradient_bytes", self.gradient_bytes, 0.0)
        at_least("intra_latency_s", self.intra_latency_s, 0.0)
        at_least("inter_latency_s", self.inter_latency_s, 0.0)
        for name, value in (("intra", self.intra_bytes_per_s), ("inter", self.inter_bytes_per_s)):
            if not value > 0:
                raise InvalidValue(f"{name}_bytes_per_s", value, "above 0 (infinite is allowed)")

    def times(self, spread: Spread, local_C: Floats) -> tuple[Floats, Floats]:
        """Seconds of a step with and without its gradient exchange."""
        compute_C = self.alpha_s + self.beta_s * local_C
        return compute_C + self.exchange_s(spread), compute_C

    def exchange_s(self, spread: Spread) -> float:
        """Seconds of one all-reduce."""
        gpus, nodes = sum(spread), _nodes(spread)
        if nodes > 1:
            latency_s, bytes_per_s = self.inter_latency_s, self.inter_bytes_per_s
        else:
            latency_s, bytes_per_s = self.intra_latency_s, self.intra_bytes_per_s
        return 2.0 * (gpus - 1) * (latency_s + self.gradient_bytes / gpus / bytes_per_s) if gpus > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxStep:
    """Pollux's seven parameters: T_step = (T_acc ** gamma + T_net ** gamma) ** (1 / gamma).

    T_acc = alpha_c + beta_c * local; T_net = alpha + beta * max(gpus - 2, 0), with the `n` pair between nodes, the
    `r` pair within one, and 0 on one GPU. gamma = 1 is no overlap of the two, gamma = 10 nearly full overlap.
    """

    alpha_c_s: float
    beta_c_s: float
    alpha_n_s: float
    beta_n_s: float
    alpha_r_s: float
    beta_r_s: float
    gamma: float

    def __post_init__(self) -> None:
        _compute_checked(self.alpha_c_s, self.beta_c_s)
        for name in ("alpha_n_s", "beta_n_s", "alpha_r_s", "beta_r_s"):
            at_least(name, getattr(self, name), 0.0)
        if not 1.0 <= self.gamma <= 10.0:  # noqa: PLR2004 - the range Pollux allows; 10 is close to a maximum
            raise InvalidValue("gamma", self.gamma, "between 1 and 10")

    def times(self, spread: Spread, local_C: Floats) -> tuple[Floats, Floats]:
        """Seconds of a step with and without its gradient exchange."""
        compute_C = self.alpha_c_s + self.beta_c_s * local_C
        exchange_s = self.exchange_s(spread)
        high_C = np.maximum(compute_C, exchange_s)
        low_C = np.minimum(compute_C, exchange_s)
        # The larger one stands outside the power, so that neither overflows nor vanishes at gamma = 10.
        return high_C * (1.0 + (low_C / high_C) ** self.gamma) ** (1.0 / self.gamma), compute_C

    def exchange_s(self, spread: Spread) -> float:
        """Seconds of one gradient exchange, before overlap."""
        gpus = sum(spread)
        if gpus <= 1:
            return 0.0
        alpha_s, beta_s = (self.alpha_n_s, self.beta_n_s) if _nodes(spread) > 1 else (self.alpha_r_s, self.beta_r_s)
        return alpha_s + beta_s * (gpus - 2)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FixedBatch(ConstantRate):
    """A speed in samples per second at one global batch, whatever the number of GPUs: the curve of loss never changes.

    `max_local` is what the memory of each kind holds; more is accumulated. More GPUs than samples cannot run.
    """

    step: Mapping[str, StepTime] = field(hash=False)  # by GPU kind
    max_local: Mapping[str, int] = field(hash=False)
    batch: int
    _rates: dict[tuple[str, Spread], float] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        whole("batch", self.batch, 1)
        if not self.step:
            raise InvalidValue("step", dict(self.step), "a step-time model for at least one GPU kind")
        for kind in self.step:
            whole(f"max_local[{kind}]", self.max_local.get(kind, 0), 1)

    def __repr__(self) -> str:
        return f"FixedBatch(kinds={sorted(self.step)}, batch={self.batch})"

    def rate(self, gpu: str, spread: Spread, done: float) -> float:  # noqa: ARG002 - one phase: `done` is of no account
        """Samples per second; 0 on a kind without a model."""
        rate = self._rates.get((gpu, spread))
        if rate is None:
            rate = self._rates[gpu, spread] = self._rate(gpu, spread)
        return rate

    def _rate(self, gpu: str, spread: Spread) -> float:
        gpus = sum(spread)
        if gpu not in self.step or not 0 < gpus <= self.batch:
            return 0.0
        each = math.ceil(self.batch / gpus)  # all wait for the GPU with the most samples
        steps = math.ceil(each / self.max_local[gpu])
        local_C = np.array([float(math.ceil(each / steps))])
        return float(self.batch / iteration_s(self.step[gpu], spread, local_C, np.array([steps - 1.0]))[0])


def _compute_checked(alpha_s: float, beta_s: float) -> None:
    at_least("alpha_s", alpha_s, 0.0)
    at_least("beta_s", beta_s, 0.0)
    if alpha_s + beta_s <= 0.0:
        raise InvalidValue("alpha_s + beta_s", alpha_s + beta_s, "above 0: a step takes time")


def _nodes(spread: Spread) -> int:
    return sum(1 for used in spread if used > 0)

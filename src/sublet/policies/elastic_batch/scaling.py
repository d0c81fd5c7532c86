"""How a job scales when its batch may grow with its GPUs: the job scalability analysis of Saxena et al. (2020).

    T(b, k) = b / (compute(ceil(b / k)) + exchange(k))     samples per second at global batch b on k GPUs
    best(k) = the batch of the range, at most `max_local` samples a GPU, at which T is greatest
    S(k)    = T(best(k), k) / T(max_local, 1)              the scaling factor: 1 is what one full GPU does

Only batches that the owner declared safe for accuracy are used, and nothing is accumulated: a batch that does not fit
takes more GPUs. A batch fixed at submission is a range of one.

>>> step = RingStep(alpha_s=3e-3, beta_s=2e-4, gradient_bytes=244e6, intra_bytes_per_s=1e10, inter_bytes_per_s=1e10)
>>> speed = BatchScaling(step={"T4": step}, batches=doubling(32, 2048), max_local={"T4": 256})
>>> [(k, speed.batch("T4", (k,)), round(speed.factor("T4", (k,)), 2)) for k in (1, 2, 3, 4)]
[(1, 256, 1.0), (2, 512, 1.38), (3, 512, 1.55), (4, 1024, 2.39)]
>>> speed.fixed(2048).least_gpus("T4", 10)
8
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from sublet.domain.quantity import whole
from sublet.domain.shape import Spread, packed
from sublet.errors import Infeasible, InvalidValue
from sublet.perf.speedup import ConstantRate
from sublet.perf.steptime import StepTime


def doubling(smallest: int, largest: int) -> tuple[int, ...]:
    """The smallest batch, twice that and so on, up to the largest."""
    whole("smallest", smallest, 1)
    whole("largest", largest, 1)
    if smallest > largest:
        raise InvalidValue("smallest", smallest, f"at most the largest batch {largest}")
    return tuple(smallest * 2**power for power in range((largest // smallest).bit_length()))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchScaling(ConstantRate):
    """A speed in samples per second, at the best batch for the number of GPUs."""

    step: Mapping[str, StepTime] = field(hash=False)  # by GPU kind
    batches: tuple[int, ...]  # global, increasing
    max_local: Mapping[str, int] = field(hash=False)  # samples that the memory of one GPU holds, by kind
    _found: dict[tuple[str, Spread], tuple[float, int | None]] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.batches or any(after <= before for before, after in pairwise(self.batches)):
            raise InvalidValue("batches", self.batches, "at least one, and increasing")
        for batch in self.batches:
            whole("batches", batch, 1)
        if not self.step:
            raise InvalidValue("step", dict(self.step), "a step-time model for at least one GPU kind")
        for kind in self.step:
            whole(f"max_local[{kind}]", self.max_local.get(kind, 0), 1)

    def __repr__(self) -> str:
        return f"BatchScaling(kinds={sorted(self.step)}, batches={self.batches[0]} to {self.batches[-1]})"

    def fixed(self, batch: int) -> BatchScaling:
        """The same job with its batch fixed at submission."""
        if batch not in self.batches:
            raise InvalidValue("batch", batch, f"one of {', '.join(map(str, self.batches))}")
        return replace(self, batches=(batch,))

    def rate(self, gpu: str, spread: Spread, done: float) -> float:  # noqa: ARG002 - one phase: `done` is of no account
        """Samples per second at the best batch; 0 where no batch of the range fits."""
        return self._best(gpu, spread)[0]

    def batch(self, gpu: str, spread: Spread) -> int | None:
        """The best batch, the smallest among equals; None where none fits."""
        return self._best(gpu, spread)[1]

    def rate_at(self, batch: int, gpu: str, spread: Spread) -> float:
        """Samples per second at one batch, of the range or not; 0 if it does not fit or was never measured."""
        gpus = sum(spread)
        if gpu not in self.step or not 0 < gpus <= batch:
            return 0.0
        local = math.ceil(batch / gpus)
        if local > self.max_local[gpu]:
            return 0.0
        seconds = float(self.step[gpu].times(spread, np.array([float(local)]))[0][0])
        if not seconds > 0.0:  # NaN as well
            raise InvalidValue(f"step time on {gpu} at {local} samples a GPU", seconds, "above 0; infinite: cannot run")
        return batch / seconds

    def factor(self, gpu: str, spread: Spread) -> float:
        """The scaling factor: how many full GPUs' worth of samples it trains on."""
        rate = self.rate(gpu, spread, 0.0)
        if not rate:
            return 0.0
        one = self.rate_at(self.max_local[gpu], gpu, (1,))
        return rate / one if one else float(sum(spread))

    def least_gpus(self, gpu: str, most: int, gpus_per_node: int = 0) -> int:
        """The fewest GPUs, packed, on which some batch of the range fits; `Infeasible` if that is above `most`."""
        for gpus in range(1, most + 1):
            if self.rate(gpu, packed(gpus, gpus_per_node or gpus), 0.0) > 0.0:
                return gpus
        raise Infeasible(
            f"no batch from {self.batches[0]} to {self.batches[-1]} fits on {most} x {gpu}",
            binding="samples that they hold together",
            needed=self.batches[0],
            available=most * self.max_local.get(gpu, 0),
            hint="allow smaller batches or more GPUs",
        )

    def _best(self, gpu: str, spread: Spread) -> tuple[float, int | None]:
        found = self._found.get((gpu, spread))
        if found is None:
            rates = [(self.rate_at(batch, gpu, spread), batch) for batch in self.batches]
            rate, batch = max(rates, key=lambda each: each[0])  # the first, so the smallest, among equals
            found = self._found[gpu, spread] = (rate, batch if rate > 0.0 else None)
        return found

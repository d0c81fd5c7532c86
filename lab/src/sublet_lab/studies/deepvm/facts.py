"""Facts that DeepVM (CCGrid 2024, arXiv 2403.05861) states of machines: prices, networks, scores and scaling.

The figures are those of the authors' repository (lass-lab/DeepVM, 8b661e40, data.json and results/real_world). A score
is relative, with a g3s.xlarge at 100; spot is 0.3 of on-demand, which is an assumption of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sublet.advise.checkpointing import ANCHORS, Anchor
from sublet.domain.quantity import named, positive, whole
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue

__all__ = ["ANCHORS", "AWS", "SCALING_S", "SENDERS", "VIRTUAL", "Anchor", "Trainer", "senders_per_anchor"]

SPOT_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A GPU machine. `a`, `b`, `c` are a logistic curve through its measured speed-up; `most` nodes may be rented."""

    name: str
    on_demand_usd_per_h: float
    gbit_per_s: float
    score: float
    a: float
    b: float
    c: float
    most: int

    def __post_init__(self) -> None:
        named("trainer", self.name)
        for field in ("on_demand_usd_per_h", "gbit_per_s", "score", "a", "b", "c"):
            positive(field, getattr(self, field))
        whole("most", self.most, 1)

    @property
    def spot_usd_per_h(self) -> float:
        """Its assumed spot price, rounded to what a bill would say."""
        return round(SPOT_SHARE * self.on_demand_usd_per_h, 6)

    @property
    def flopp(self) -> float:
        """Score-hours per dollar on spot, times 3600: what the paper calls FLOPP."""
        return self.score / self.spot_usd_per_h * SECONDS_PER_H

    def factor(self, nodes: int) -> float:
        """K(n): 1 up to the bend of the logistic, and from there the curve by its tangent at the bend."""
        beyond = nodes - self.b
        if beyond <= 0:
            return 1.0
        curve = self.c / (1.0 + math.exp(-self.a * beyond))
        tangent = self.a * self.c / 4.0 * beyond + self.c / 2.0
        return curve / tangent

    def performance(self, nodes: int) -> float:
        """The score of a cluster as the paper simulates it: score x nodes x K(nodes)."""
        return self.score * nodes * self.factor(nodes)


SENDERS: Mapping[float, int] = MappingProxyType(  # Gbit/s -> nodes that may send to one server, this number excluded
    {0.3: 2, 1.7: 12, 5.0: 16, 10.0: 20, 12.5: 24, 15.0: 24, 25.0: 28, 30.0: 32}
)


def senders_per_anchor(trainer: Trainer, anchor: Anchor) -> int:
    """Fewer nodes than this may share a checkpoint server before the slower of the two networks is full."""
    gbit_per_s = min(trainer.gbit_per_s, anchor.gbit_per_s)
    if gbit_per_s not in SENDERS:
        raise InvalidValue("gbit_per_s", gbit_per_s, f"one of the measured {', '.join(f'{g:g}' for g in SENDERS)}")
    return SENDERS[gbit_per_s]


def _trainers(most: int, *rows: tuple[str, float, float, float, float, float, float]) -> tuple[Trainer, ...]:
    return tuple(
        Trainer(name=name, on_demand_usd_per_h=usd, gbit_per_s=net, score=score, a=a, b=b, c=c, most=most)
        for name, usd, net, score, a, b, c in rows
    )


AWS = _trainers(
    31,  # 128 vCPUs of spot quota, 4 each; the published loops end one short of it
    ("g3s.xlarge", 0.75, 10.0, 100, 0.1408559584, 14.49263334, 13.53250952),
    ("g4dn.xlarge", 0.526, 25.0, 377, 0.1338806402, 12.87424514, 6.176666667),
    ("g5.xlarge", 1.006, 10.0, 696, 0.08533428072, 20.06669931, 4.962225551),
)
VIRTUAL = _trainers(
    255,  # the published limit of 256, one short as well
    ("A", 0.75, 10.0, 100, 0.14, 14.5, 13.5),
    ("B", 0.526, 25.0, 377, 0.13, 12.9, 6.2),
    ("C", 1.006, 10.0, 696, 0.09, 20.1, 5.0),
    ("D", 0.55, 15.0, 700, 0.2, 10.0, 5.0),
    ("E", 0.368, 1.7, 100, 0.1, 20.0, 15.0),
    ("F", 1.236, 25.0, 800, 0.1, 15.0, 10.0),
    ("G", 0.973, 30.0, 200, 0.1, 15.0, 10.0),
    ("H", 0.252, 5.0, 150, 0.2, 10.0, 5.0),
    ("I", 1.622, 30.0, 900, 0.2, 9.9, 7.0),
    ("J", 0.22, 5.0, 50, 0.1, 20.0, 15.0),
)
# Three epochs of CIFAR-10 at 128 samples per GPU, seconds by number of nodes with one GPU each.
_NODES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
SCALING_S: Mapping[str, Mapping[int, float]] = MappingProxyType(
    {
        name: MappingProxyType(dict(zip(_NODES, seconds, strict=True)))
        for name, seconds in {
            "g3s.xlarge": (245.6, 138.4, 98.9, 54.1, 38.1, 30.8, 26.1, 22.8, 19.3, 19.6),
            "g4dn.xlarge": (61.2, 59.0, 44.0, 26.9, 20.0, 16.3, 14.1, 12.8, 11.1, 11.6),
            "g5.xlarge": (31.0, 65.6, 50.2, 30.2, 22.5, 18.3, 15.1, 13.9, 11.3, 10.8),
        }.items()
    }
)

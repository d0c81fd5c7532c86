"""Pollux (OSDI 2021): goodput, shared fairly, and restarts that count."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot, arrival
from sublet.domain.quantity import positive
from sublet.errors import InvalidValue
from sublet.planning.draft import Draft
from sublet.planning.widths import jobs_by_pool
from sublet_lab.rivals.fitness import Discount, by_time_left, fittest_widths


@dataclass(frozen=True, slots=True)
class Pollux:
    """The fittest split: the power mean of goodputs over a fair share, moves discounted by their pause."""

    power: float = -1.0  # the more negative, the fairer; the harmonic mean is what was published
    round_s: float = 60.0  # goodput changes as jobs train: look again after this long
    growth: float = math.inf  # how many times the GPUs that a job has tried it may have; 2 is what was published
    discount: Discount = by_time_left  # of a move; `by_age` is what was published

    def __post_init__(self) -> None:
        positive("round_s", self.round_s)
        if not self.growth > 1:
            raise InvalidValue("growth", self.growth, "above 1")
        if not self.power < 0:
            raise InvalidValue("power", self.power, "below 0")

    def decide(self, snapshot: Snapshot) -> Plan:
        """Pool by pool, kinds of GPU not being compared; the widest jobs are placed first."""
        draft, now_s = Draft(snapshot), snapshot.now_s
        in_order = iter(sorted(snapshot.active.values(), key=lambda state: state.seq))
        for name, group in jobs_by_pool(in_order, snapshot.waiting.by(arrival), draft.most).items():
            group.sort(key=lambda state: state.seq)
            pool, most = snapshot.pools[name], draft.most[name]
            widths = fittest_widths(
                group, pool, most, now_s, power=self.power, growth=self.growth, discount=self.discount
            )
            for gpus, _, state in sorted(zip(widths, range(len(group)), group, strict=True), reverse=True):
                if gpus:
                    draft.give(state, name, gpus)
                else:
                    draft.take(state, "others gain more from its GPUs")
        return draft.plan(ask_again_s=now_s + self.round_s if snapshot.active or snapshot.waiting else None)

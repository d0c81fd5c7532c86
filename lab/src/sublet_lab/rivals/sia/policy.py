"""Sia (SOSP 2023): goodput on several kinds of GPU, chosen for all jobs at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from sublet.domain.plan import Plan, Snapshot, arrival
from sublet.domain.quantity import positive
from sublet.errors import InvalidValue
from sublet.planning.draft import Draft
from sublet.planning.widths import rate_at
from sublet_lab.rivals.fitness import Discount, by_time_left
from sublet_lab.rivals.sia.choices import Rate, best_choices


@dataclass(frozen=True, slots=True)
class Sia:
    """One integer program for all jobs: kind and number of GPUs by goodput, moves discounted by their pause."""

    power: float = -0.5  # this and the next as published; the more negative, the fairer
    waiting_cost: float = 1.1  # of a job without GPUs; one with its worst choice costs 1
    round_s: float = 60.0  # goodput changes as jobs train: look again after this long
    growth: float = math.inf  # how many times the GPUs that a job has tried it may have; 2 is what was published
    discount: Discount = by_time_left  # of a move; `by_age` is what was published
    rate: Rate = rate_at  # how fast a job is thought to be; by default the job's own speed says

    def __post_init__(self) -> None:
        positive("waiting_cost", self.waiting_cost)
        positive("round_s", self.round_s)
        if not self.growth > 1:
            raise InvalidValue("growth", self.growth, "above 1")
        if not self.power < 0:
            raise InvalidValue("power", self.power, "below 0")

    def decide(self, snapshot: Snapshot) -> Plan:
        """The best choices; jobs that wait are looked at in order of arrival, as many as there are GPUs."""
        draft, now_s = Draft(snapshot), snapshot.now_s
        gpus = sum(draft.most.values())
        waiting = islice(snapshot.waiting.by(arrival), int(gpus) if math.isfinite(gpus) else None)
        group = sorted((*snapshot.active.values(), *waiting), key=lambda state: state.seq)
        choices = best_choices(
            group,
            snapshot.pools,
            draft.most,
            now_s,
            rate=self.rate,
            discount=self.discount,
            power=self.power,
            growth=self.growth,
            waiting_cost=self.waiting_cost,
        )
        chosen = [(shape, state) for shape, state in zip(choices, group, strict=True) if shape is not None]
        for shape, state in sorted(chosen, key=lambda both: -both[0].gpus):  # the widest first
            draft.give(state, shape.pool, shape.gpus)
        for choice, state in zip(choices, group, strict=True):
            if choice is None:
                draft.take(state, "others gain more from its GPUs")
        return draft.plan(ask_again_s=now_s + self.round_s if group else None)

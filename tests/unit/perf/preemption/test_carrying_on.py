"""Survivors that carry on, by hand and beside rides that are told second by second."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.perf.preemption.carrying_on import carry_on
from sublet.perf.preemption.cycles import Recovery, Toll, speed_kept
from sublet.perf.preemption.survivors import Pausing
from tests.rigs.sizes import examples


@dataclass(frozen=True)
class Facts:
    """Of one shape. The survivors go on where `grow_s` is told, else they wait and refill."""

    hits: float = 1 / 1500
    again: float = 0.2
    share: float = 0.7
    boot_s: float = 400.0
    shrink_s: float = 30.0
    grow_s: float = 50.0
    refill_s: float = 9e9
    fresh_s: float = 200.0
    every_s: float = 300.0
    write_s: float = 20.0


def told(facts: Facts, *, daly: bool = False) -> Toll:
    one = np.ones(1)
    return carry_on(
        facts.hits * one,
        again_C=facts.again * one,
        none_left_C=facts.again * one,
        share_C=facts.share * one,
        pauses=Pausing(
            shrink_C=facts.shrink_s * one,
            grow_C=facts.grow_s * one,
            refill_C=facts.refill_s * one,
            fresh_C=facts.fresh_s * one,
        ),
        boot_s=facts.boot_s,
        write_s=facts.write_s,
        every_s=None if daly else facts.every_s,
    )


class Ride:
    """What becomes of a job, hit by hit."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.time = self.kept = self.paused = self.slower = self.written = 0.0
        self.since = self.survived = 0.0  # at full width since the last checkpoint, and what survivors did since then

    def train(self, facts: Facts, seconds: float) -> None:
        self.time += seconds
        if facts.every_s == 0.0:
            self.kept += seconds
            return
        finished, self.since = divmod(self.since + seconds, facts.every_s + facts.write_s)
        if finished:
            self.kept += finished * facts.every_s + self.survived
            self.written += finished * facts.write_s
            self.survived = 0.0

    def stay(self, facts: Facts) -> bool:
        """Survivors go on until new nodes train too; False = it begins anew."""
        while True:
            hit_s, whole_s = self.rng.exponential(1 / facts.hits), facts.boot_s + facts.grow_s
            trained = max(0.0, min(hit_s, facts.boot_s) - facts.shrink_s)
            self.time += min(hit_s, whole_s)
            self.paused += min(hit_s, whole_s) - trained
            self.slower += (1.0 - facts.share) * trained
            if facts.every_s == 0.0:
                self.kept += facts.share * trained
            else:
                self.survived += facts.share * trained
            if hit_s >= whole_s:
                return True
            if self.rng.random() < facts.again:
                return False

    def begin(self, facts: Facts) -> None:
        """Nodes and a start from storage, without a hit meanwhile."""
        self.since = self.survived = 0.0
        whole_s = facts.boot_s + facts.fresh_s
        while (hit_s := self.rng.exponential(1 / facts.hits)) < whole_s:
            self.time += hit_s
            self.paused += hit_s
        self.time += whole_s
        self.paused += whole_s

    def go(self, facts: Facts, hits: int) -> list[float]:
        for _ in range(hits):
            self.train(facts, self.rng.exponential(1 / facts.hits))
            if self.rng.random() < facts.again or not self.stay(facts):
                self.begin(facts)
        return [part / self.time for part in (self.kept, self.paused, self.slower, self.written)]


@pytest.mark.parametrize(
    "facts",
    [
        Facts(),
        Facts(every_s=0.0, write_s=0.0),
        Facts(again=0.0),
        Facts(again=1.0),
        Facts(again=0.02, every_s=3000.0),  # several hits within a checkpoint
        Facts(hits=1 / 200, again=0.1, share=0.9),  # a hit in most recoveries
        Facts(boot_s=20.0),  # new nodes come before the survivors train
    ],
    ids=str,
)
def test_the_formula_is_what_a_long_ride_comes_to(facts):
    found = told(facts)
    rides = np.array([Ride(seed).go(facts, 1500) for seed in range(12)])
    exact = [float(part[0]) for part in (found.kept_C, found.paused_C, found.slower_C, found.written_C)]
    error = rides.std(axis=0, ddof=1) / math.sqrt(len(rides))
    assert (np.abs(rides.mean(axis=0) - exact) < 4.5 * error + 2e-4).all(), (rides.mean(axis=0), exact, error)


facts_drawn = st.builds(
    Facts,
    hits=st.floats(1e-7, 1e-2),
    again=st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-6, 1.0)),
    share=st.floats(0.0, 1.0),
    boot_s=st.floats(0.0, 900.0),
    shrink_s=st.floats(0.0, 300.0),
    grow_s=st.floats(0.0, 300.0),
    refill_s=st.floats(0.0, 300.0),
    fresh_s=st.floats(0.0, 600.0),
    every_s=st.sampled_from([0.0, 60.0, 900.0, math.inf]),
    write_s=st.sampled_from([0.0, 15.0]),
)


@settings(max_examples=examples(300))
@given(facts_drawn)
def test_the_parts_of_the_time_add_up_to_all_of_it(facts):
    found = told(facts)
    parts = [found.kept_C, found.paused_C, found.slower_C, found.written_C, found.redone_C]
    assert all(0.0 <= float(part[0]) <= 1.0 + 1e-9 for part in parts)
    assert float(sum(parts)[0]) == pytest.approx(1.0, abs=1e-6)


@settings(max_examples=examples(200))
@given(facts_drawn)
def test_if_every_hit_begins_anew_it_is_the_formula_of_daly(facts):
    found = told(Facts(**{**facts.__dict__, "again": 1.0})).kept_C[0]
    recovery = Recovery(every_s=facts.every_s, write_s=facts.write_s, boot_s=facts.boot_s, restart_s=facts.fresh_s)
    assert found == pytest.approx(speed_kept(np.array([facts.hits]), recovery)[0], rel=1e-9, abs=1e-12)


@settings(max_examples=examples(200))
@given(facts_drawn)
def test_if_no_hit_begins_anew_only_pauses_and_the_width_that_lacks_are_lost(facts):
    facts = Facts(**{**facts.__dict__, "again": 0.0, "every_s": 0.0})
    hits = facts.hits
    stays = math.exp(-hits * (facts.boot_s + facts.refill_s))
    goes = math.exp(-hits * (facts.boot_s + facts.grow_s)) + facts.share * math.exp(
        -hits * facts.shrink_s
    ) * -math.expm1(-hits * max(0.0, facts.boot_s - facts.shrink_s))
    assert told(facts).kept_C[0] == pytest.approx(max(stays, goes), rel=1e-9)


@given(facts_drawn)
def test_checkpoints_are_only_as_many_as_new_beginnings_ask_for(facts):
    never = told(Facts(**{**facts.__dict__, "again": 0.0, "write_s": 15.0}), daly=True)
    assert (never.written_C[0], never.redone_C[0]) == (0.0, pytest.approx(0.0, abs=1e-9))
    best = told(Facts(hits=1e-6, again=0.3, write_s=20.0), daly=True).kept_C[0]
    tried = [
        told(Facts(hits=1e-6, again=0.3, write_s=20.0, every_s=every_s)).kept_C[0] for every_s in (5e3, 8e3, 1.2e4, 3e4)
    ]
    assert best > max(tried) - 1e-6


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_where_hits_are_rare_it_is_the_first_order_of_what_a_hit_costs(again, share):
    """1 - m - L (p (T / 2 + m (g + fresh)) + (1 - p) (m (g + grow) - share (g - shrink))), m = T / (T + w)."""
    facts = Facts(hits=1e-8, again=again, share=share)
    best = facts.every_s / (facts.every_s + facts.write_s)
    anew = facts.every_s / 2 + best * (facts.boot_s + facts.fresh_s)
    stays = best * (facts.boot_s + facts.grow_s) - share * (facts.boot_s - facts.shrink_s)
    first_order = best - facts.hits * (again * anew + (1.0 - again) * stays)
    assert told(facts).kept_C[0] == pytest.approx(first_order, abs=1e-9)

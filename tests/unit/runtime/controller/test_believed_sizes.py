"""Scripts of unknown size, live: believed to be as large as the simulator's policy believes of the same history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.demand import Ended, Needed, group_of
from sublet.domain.offer import Market
from sublet.perf.learned import Learned
from sublet.perf.sizes import Had, gpu_rate_of, had_by, left_by_all_h
from sublet.policies.price import beliefs, cluster_split
from sublet.policies.price.decision import WorkBelief
from sublet.policies.price.policy import Price
from sublet.runtime.controller.jobs.sizes import SizeBeliefs, SizeFiles
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

GPUS = 8


def here(tmp_path, there=(), ended=(), **facts):
    past = Ended(tuple(ended))
    return SizeBeliefs(SizeFiles(tmp_path / "sizes"), there=lambda: there, ended=lambda: past, **facts)


class Lived:
    """What `price` believes of jobs in a simulation, and beside it what a controller would that sees the same jobs."""

    def __init__(self, folder, least):
        self.there, self.ended, self.kept = set(), Ended(), 0
        self.live = SizeBeliefs(
            SizeFiles(folder),
            there=lambda: self.there,
            ended=lambda: self.ended,
            newcomer_h=beliefs.NEWCOMER_H * gpu_rate_of(least),  # hours of one worker, where the policy has GPU-hours
        )
        self.simulated, self.lived, self.by_siblings = [], [], 0

    def believed_left_h(self, asked, ended, knows):
        left_h_J = beliefs.believed_left_h(asked, ended, knows)
        now_s, states = self.now_s, asked.jobs.states
        self.there, self.ended = {state.job.id for state in states}, ended
        for needed in ended.jobs[self.kept :]:  # a script that ends is one of those that are done from then on
            self.live.keep(needed.group, f"done-{self.kept}", needed.work)
            self.kept += 1
        for state in states:
            self.live.note(group_of(state.job), state.job.id, had_by(state, now_s).gpu_h)
        for state, left_h in zip(states, left_h_J.tolist(), strict=True):
            had, group, workers = had_by(state, now_s), group_of(state.job), state.job.min_gpus
            size_h = self.live.size_h(group, workers, had)
            self.simulated.append(left_h)
            self.lived.append((size_h - had.done) / gpu_rate_of(workers))
            by_all_h = left_by_all_h(had.gpu_h, ended, newcomer_h=beliefs.NEWCOMER_H)
            self.by_siblings += not self.live.knows(group) and left_h > by_all_h
        return left_h_J


@pytest.mark.parametrize("seed", range(3))
def test_a_controller_believes_of_a_history_what_the_simulator_believes_of_it(seed, tmp_path, monkeypatch):
    rng, least = np.random.default_rng(seed), 1 + seed % 2
    jobs = [  # scripts: of one group more or less alike, at the speed that is assumed of scripts
        a_job(
            f"j{at}",
            float(rng.uniform(0.0, 3600.0)),
            work=float(rng.uniform(0.5, 1.5)) * (0.2, 2.0, 9.0)[at % 3],
            speed=Learned(guess=1.0 / 3600.0),
            model=f"script-{at % 3}",
            gpus=4,
            min_gpus=least,
            max_gpus=4,
        )
        for at in range(21)
    ]
    offer = an_offer("one", gpus=4, market=Market.ON_DEMAND)
    cloud = Cloud(offers=(offer,), limits={"one": Limit(min_nodes=GPUS // 4, max_nodes=GPUS // 4)})
    lived = Lived(tmp_path / "sizes", least)
    monkeypatch.setattr(cluster_split, "believed_left_h", lived.believed_left_h)

    class Seen:
        def decide(self, snapshot):
            lived.now_s = snapshot.now_s
            return Price(knows=WorkBelief.LEARNED).decide(snapshot)

    simulate(jobs, Seen(), cloud)
    assert len(lived.simulated) > 200
    assert lived.by_siblings > 5  # else that part of the rule was not looked at
    assert lived.lived == pytest.approx(lived.simulated, rel=1e-6)


def test_who_is_gone_tells_nothing_and_the_next_of_those_who_run_does(tmp_path):
    there = {"a", "b", "c"}
    live = here(tmp_path, there)
    for job, gpu_h in (("a", 9.0), ("b", 4.0), ("c", 1.0)):
        live.note("g", job, gpu_h)
    assert live.size_h("g") == 18.0
    assert live.size_h("other") == 1.0
    assert live.size_h("") == 1.0
    there.discard("a")
    assert live.size_h("g") == 8.0
    assert live.size_h("g", 1, Had(0.5, 0.5)) == 8.0
    live.note("g", "c", 6.0)
    assert live.size_h("g") == 12.0
    there.clear()
    assert live.size_h("g") == 1.0


def test_one_that_finishes_tells_more_than_all_that_run_and_what_others_needed_counts_where_none_has(tmp_path):
    live = here(tmp_path, {"a"}, [Needed("", 1.0, 7.0)])
    assert live.size_h("g") == pytest.approx((2 * 1.0 + 7.0) / 3)
    live.note("g", "a", 50.0)
    assert live.size_h("g") == 100.0
    assert not live.knows("g")
    assert "one that has not has had 50 GPU-hours" in live.describe("g", 100.0)
    live.keep("g", "b", 3.0)
    assert (live.size_h("g"), live.knows("g"), live.knows("")) == (3.0, True, False)
    assert live.size_h("g", 1, Had(4.0, 4.0)) == 5.0
    assert here(tmp_path).size_h("g") == 3.0, "over a restart"


def test_where_the_size_comes_from_is_said_with_its_quantiles(tmp_path):
    live = here(tmp_path)
    for at, hours in enumerate((2.0,) * 8 + (4.0,) * 4):
        live.keep("g", f"j-{at}", hours)
    said = live.describe("g", 2.7, 1.0)
    assert "learned from 12 finished jobs of this group: median 2 h, p90 4 h" in said
    assert "it has had 1 h of one worker, and 1.7 h more are expected" in said
    assert "no job of its group has finished: it has had 0 h" in live.describe("new", 1.0)


@settings(max_examples=examples(100))
@given(workers=st.integers(1, 64), done=st.floats(0.0, 50.0))
def test_a_script_that_must_be_wide_begins_with_an_hour_of_one_worker_all_the_same(workers, done, tmp_path_factory):
    live = here(tmp_path_factory.mktemp("none"))
    assert live.size_h("g", workers) == pytest.approx(1.0)
    gpu_h = done / gpu_rate_of(workers)
    assert live.size_h("g", workers, Had(done, gpu_h)) == pytest.approx(2.0 * done + 1.0)

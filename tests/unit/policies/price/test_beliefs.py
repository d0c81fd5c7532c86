"""How much work `price` believes that jobs have left, and that it believes nothing that it must not know."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sublet.domain.budget import Limit
from sublet.domain.demand import Ended, Needed
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.perf.speedup import Amdahl
from sublet.policies.price.beliefs import NEWCOMER_H, SHORT_FIRST, left_of_all_h
from sublet.policies.price.cluster_split import _left_h
from sublet.policies.price.decision import WorkBelief
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import sized

RATE = 10.0  # work per GPU-hour


def asked(*jobs, weight=1.0):
    """(model, work done, GPU-hours had) each; declared are 1000 hours."""
    states = []
    for row, (model, done, had_h) in enumerate(jobs):
        job = a_job(f"j{row}", work=1000 * RATE, model=model, weight=weight)
        states.append(JobState(job=job, seq=row, phase=Phase.WAITING, done=done, gpu_s=3600.0 * had_h))
    columns = SimpleNamespace(
        states=states,
        weight_J=np.full(len(jobs), weight),
        done_J=np.array([state.done for state in states]),
        gpu_hours_J=np.array([(state.job.work - state.done) / RATE / weight for state in states]),
        attained_gpu_s_J=np.array([state.attained_gpu_s(0.0) for state in states]),
    )
    return SimpleNamespace(jobs=columns, table=SimpleNamespace(gpu_rate_J=np.full(len(jobs), RATE)))


def left_h(knows, ended, *jobs, weight=1.0):
    return _left_h(asked(*jobs, weight=weight), Ended(tuple(ended)), knows).tolist()


def test_what_is_declared_is_believed():
    assert left_h(WorkBelief.DECLARED, [], ("m", 50.0, 9.0)) == [995.0]


def test_where_nothing_is_known_all_have_as_much_left_as_one_another():
    assert left_h(WorkBelief.NOTHING, [], ("m", 50.0, 9.0), ("n", 0.0, 0.0), weight=4.0) == [0.25, 0.25]


def test_of_the_past_a_job_is_one_of_those_that_needed_more_than_it_has_had():
    """Three are done and it runs itself (`survival`): of four one ended at 1, and two of the three that went on did."""
    ended = [Needed("x", 1.0, gpu_h) for gpu_h in (1.0, 3.0, 8.0)]
    left = left_of_all_h(np.array([2.0]), np.array([1.0, 3.0, 8.0]), newcomer_h=NEWCOMER_H, power=SHORT_FIRST)
    assert left_h(WorkBelief.PAST, ended, ("m", 0.0, 2.0)) == pytest.approx(left.tolist())
    assert left_h(WorkBelief.PAST, [], ("m", 0.0, 2.0)) == pytest.approx([2.1], rel=0.2)  # or a little more than that


def test_of_all_that_are_there_each_tells_how_long_jobs_are():
    """Beside one that has run for 30 hours a newcomer seems longer than beside one that has run for a minute."""
    ended = [Needed("x", 1.0, 1.0)]
    beside_long, _ = left_h(WorkBelief.PAST, ended, ("m", 0.0, 0.0), ("m", 0.0, 30.0))
    beside_short, _ = left_h(WorkBelief.PAST, ended, ("m", 0.0, 0.0), ("m", 0.0, 0.02))
    assert beside_long > 1.2 * beside_short


def test_of_its_group_it_is_one_of_those_that_did_more():
    ended = [Needed("m", work, 1.0) for work in (100.0, 200.0, 600.0)] + [Needed("other", 1e6, 1.0)]
    assert left_h(WorkBelief.LEARNED, ended, ("m", 150.0, 9.0)) == pytest.approx([((200 + 600) / 2 - 150) / RATE])
    assert left_h(WorkBelief.LEARNED, ended, ("m", 800.0, 9.0)) == pytest.approx([0.25 * 800 / RATE])  # outlived
    assert left_h(WorkBelief.LEARNED, ended, ("m", 600.0, 9.0)) == pytest.approx([0.25 * 600 / RATE])  # as much
    assert left_h(WorkBelief.LEARNED, ended, ("m", 200.0, 9.0)) == pytest.approx([(600 - 200) / RATE])


def test_while_none_of_the_group_is_done_one_that_runs_on_tells_that_the_others_are_long():
    newcomer, veteran = left_h(WorkBelief.LEARNED, [], ("m", 0.0, 0.0), ("m", 10.0, 30.0))
    assert newcomer == pytest.approx(60.0)
    assert veteran == pytest.approx(30.1)
    alone, _ = left_h(WorkBelief.LEARNED, [], ("n", 0.0, 0.0), ("m", 10.0, 30.0))
    assert alone == pytest.approx(0.1)


def test_jobs_without_a_group_are_guessed_by_all_that_are_done():
    """One that needed 4, and two that are imagined and need as much again."""
    assert left_h(WorkBelief.LEARNED, [Needed("", 5.0, 4.0)], ("", 1.0, 1.0)) == pytest.approx([(2 * 1.1 + 3.0) / 3])


@pytest.mark.parametrize("knows", list(WorkBelief))
def test_what_weighs_more_seems_to_have_less_left(knows):
    ended = [Needed("m", 100.0, 4.0)]
    once, twice = (left_h(knows, ended, ("m", 10.0, 1.0), weight=weight) for weight in (1.0, 2.0))
    assert once == pytest.approx([2.0 * each for each in twice])


# ---------------------------------------------------------------------- no leak


class Line(list):
    """Jobs that wait."""

    def by(self, key):
        return iter(sorted(self, key=lambda state: (key(state), state.seq)))

    def orders(self, *keys):
        return tuple(list(self.by(key)) for key in keys)


class Permuted:
    """Decides as another policy; beside it, looks what that would do were all jobs of other sizes."""

    def __init__(self, policy, seed):
        self.policy, self.rng, self.same, self.other = policy, np.random.default_rng(seed), 0, 0

    def decide(self, snapshot):
        plan = self.policy.decide(snapshot)
        states = [*snapshot.active.values(), *snapshot.waiting.by(lambda _: 0.0)]
        factor = dict(zip((state.job.id for state in states), self.rng.uniform(1.0, 50.0, len(states)), strict=True))

        def larger(state):
            return replace(state, job=replace(state.job, work=state.job.work * factor[state.job.id]))

        active = {name: larger(state) for name, state in snapshot.active.items()}
        line = Line(larger(state) for state in snapshot.waiting.by(lambda _: 0.0))
        again = self.policy.decide(replace(snapshot, active=active, waiting=line))
        if again.shapes == plan.shapes and again.hold == plan.hold:
            self.same += 1
        else:
            self.other += 1
        return plan


@pytest.mark.parametrize("knows", list(WorkBelief))
@pytest.mark.parametrize("seed", range(sized(1, 3)))
def test_sizes_that_it_is_not_told_do_not_change_what_it_decides(knows, seed):
    rng = np.random.default_rng(seed)
    jobs = [
        a_job(
            f"j{at}",
            60.0 * at,
            work=float(rng.uniform(100, 9000)),
            speed=Amdahl(parallel=float(rng.choice([0.5, 0.9, 0.99]))),
            model=str(rng.choice(["m", "n", ""])),
            max_gpus=8,
            restart_s=20.0,
        )
        for at in range(30)
    ]
    offers = [an_offer(name, gpus=4, market=Market.ON_DEMAND) for name in ("one", "two")[: 1 + seed % 2]]
    cloud = Cloud(offers=tuple(offers), limits={offer.id: Limit(min_nodes=3, max_nodes=3) for offer in offers})
    seen = Permuted(Price(knows=knows), seed)
    simulate(jobs, seen, cloud)
    if knows is WorkBelief.DECLARED:
        assert seen.other > 10  # else nothing would be seen here
    else:
        assert (seen.other, seen.same > 30) == (0, True)

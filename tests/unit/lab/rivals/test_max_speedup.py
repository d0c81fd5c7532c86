"""Marginal gain: the sum of speedups is maximal, and a running job grows only if it ends sooner for it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import JobFinished
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.max_speedup import MaxSpeedup
from tests.rigs.sizes import examples


def town(*jobs, nodes=2, size=4):
    driver = Driver([an_offer("o", gpus=size, pool="p")], limits={"o": Limit(max_nodes=nodes)})
    driver.submit(*jobs)
    driver.settle(MaxSpeedup())
    return driver


def elastic(job_id, low=1, high=8, speed=None, **facts):
    return a_job(job_id, gpus=low, min_gpus=low, max_gpus=high, speed=speed or Linear(), **facts)


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


def test_gpus_go_where_they_speed_up_most():
    jobs = elastic("poor", speed=PowerLaw(exponent=0.1)), elastic("rich", high=6)
    assert sizes(town(*jobs, nodes=1, size=7)) == {"poor": 1, "rich": 6}
    assert sizes(town(*jobs, nodes=1, size=8)) == {"poor": 2, "rich": 6}


def test_everyone_gets_the_smallest_width_before_anyone_grows():
    driver = town(*(elastic(f"j{n}") for n in range(8)))
    assert sizes(driver) == {f"j{n}": 1 for n in range(8)}


def test_nobody_gets_gpus_that_do_not_help():
    assert sizes(town(elastic("a", speed=PowerLaw(exponent=0.0)))) == {"a": 1}


@pytest.mark.parametrize(("restart_s", "gpus"), [(0.0, 8), (124.0, 8), (126.0, 4)])
def test_a_running_job_grows_only_if_it_ends_sooner_in_spite_of_the_restart(restart_s, gpus):
    driver = town(elastic("a", work=1000.0, restart_s=restart_s), elastic("b", low=4, high=4))
    assert sizes(driver) == {"a": 4, "b": 4}
    driver.tell(JobFinished(0.0, "b"))  # 250 s on four GPUs, 125 s on eight
    driver.settle(MaxSpeedup())
    assert sizes(driver) == {"a": gpus}


concave = st.one_of(
    st.just(Linear()),
    st.floats(0.1, 1.0).map(lambda e: PowerLaw(exponent=round(e, 2))),
    st.floats(0.1, 0.99).map(lambda p: Amdahl(parallel=round(p, 2))),
)


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(concave, st.integers(1, 2), st.integers(0, 6)), min_size=1, max_size=4),
    st.integers(1, 7),
)
def test_the_sum_of_speedups_is_that_of_the_best_of_all_splits(drawn, gpus):
    jobs = [elastic(f"j{n}", low, low + more, speed) for n, (speed, low, more) in enumerate(drawn)]
    # on nodes of one GPU every width is useful, so that the best split can be found by trying them all
    admitted, needed = [], 0
    for job in jobs:  # nobody overtakes at the door
        if needed + job.min_gpus > gpus:
            break
        admitted.append(job)
        needed += job.min_gpus

    def speedup(job, width):
        return job.speed.rate("T4", (1,) * width, 0.0) / job.speed.rate("T4", (1,) * job.min_gpus, 0.0)

    splits = product(*(range(job.min_gpus, job.max_gpus + 1) for job in admitted))
    best = max(
        sum(speedup(job, width) for job, width in zip(admitted, split, strict=True))
        for split in splits
        if sum(split) <= gpus
    )
    ours = sizes(town(*jobs, nodes=gpus, size=1))
    assert set(ours) == {job.id for job in admitted}
    assert sum(speedup(job, ours[job.id]) for job in admitted) == pytest.approx(best, rel=1e-9)

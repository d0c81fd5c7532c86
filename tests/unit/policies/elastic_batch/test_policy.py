"""Admit first come first served; GPUs and batches go where jobs scale best."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, JobFinished, NodeLost
from sublet.domain.plan import Phase
from sublet.domain.timers import PlanAgain
from sublet.errors import Infeasible, InvalidValue
from sublet.perf.phased import Phased
from sublet.perf.speedup import Linear, PowerLaw, Table
from sublet.perf.steptime import RingStep
from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.policies.elastic_batch.scaling import BatchScaling, doubling
from sublet.sim.simulator import Cloud, simulate
from sublet.solve.knapsack.rows import Rows
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

GPU = "T4"


def ring(beta_s=2e-4, gradient_bytes=244e6):
    return RingStep(
        alpha_s=3e-3, beta_s=beta_s, gradient_bytes=gradient_bytes, intra_bytes_per_s=1e10, inter_bytes_per_s=1e10
    )


def scaling(low=32, high=2048, local=256, step=None):
    return BatchScaling(step={GPU: step or ring()}, batches=doubling(low, high), max_local={GPU: local})


def town(*jobs, gpus=8, policy=ElasticBatch()):  # noqa: B008 - frozen
    driver = Driver([an_offer("o", gpus=gpus, pool="p")], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def elastic(job_id, speed=None, high=8, **facts):
    return a_job(job_id, gpus=1, max_gpus=high, speed=speed or scaling(), **{"work": 1e7, **facts})


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


# ---------------------------------------------------------------------- how a job scales


def test_the_best_batch_is_the_best_of_all_that_fit():
    speed = scaling()
    for gpus in range(1, 11):
        rates = {batch: speed.rate_at(batch, GPU, (gpus,)) for batch in speed.batches}
        fits = {batch for batch in speed.batches if -(-batch // gpus) <= 256}
        assert {batch for batch, rate in rates.items() if rate > 0} == fits
        assert speed.rate(GPU, (gpus,), 0.0) == max(rates.values())
        assert rates[speed.batch(GPU, (gpus,))] == max(rates.values())


def test_one_full_gpu_is_the_unit_whatever_the_batch():
    speed = scaling()
    assert speed.factor(GPU, (1,)) == 1.0
    assert speed.fixed(32).factor(GPU, (1,)) == speed.rate_at(32, GPU, (1,)) / speed.rate_at(256, GPU, (1,)) < 1.0
    assert speed.factor("other", (1,)) == 0.0


@pytest.mark.parametrize(("batch", "least"), [(32, 1), (256, 1), (512, 2), (1024, 4), (2048, 8)])
def test_a_fixed_batch_needs_as_many_gpus_as_hold_it(batch, least):
    assert scaling().fixed(batch).least_gpus(GPU, 10) == least


def test_a_batch_range_that_fits_on_nothing_is_told_with_numbers():
    with pytest.raises(Infeasible, match="no batch from 512 to 2048 fits") as told:
        scaling(low=512).least_gpus(GPU, 1)
    assert (told.value.needed, told.value.available) == (512, 256)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: doubling(64, 32), "smallest"),
        (lambda: doubling(0, 32), "smallest"),
        (lambda: BatchScaling(step={GPU: ring()}, batches=(), max_local={GPU: 1}), "batches"),
        (lambda: BatchScaling(step={GPU: ring()}, batches=(8, 8), max_local={GPU: 1}), "batches"),
        (lambda: BatchScaling(step={}, batches=(8,), max_local={}), "step"),
        (lambda: BatchScaling(step={GPU: ring()}, batches=(8,), max_local={}), "max_local"),
        (lambda: scaling().fixed(33), "batch"),
        (lambda: a_job(gpus=4, min_gpus=8, max_gpus=2), "gpus"),
        (lambda: ElasticBatch(every_s=0.0), "every_s"),
        (lambda: ElasticBatch(stickiness=-1.0), "stickiness"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, field):
    with pytest.raises(InvalidValue, match=field):
        make()


class Measured:
    """Step times by GPUs and samples a GPU; what was not measured is infinite, or worse."""

    def __init__(self, seconds, otherwise=np.inf):
        self.seconds, self.otherwise = seconds, otherwise

    def times(self, spread, local_C):
        step_s = np.array([self.seconds.get((sum(spread), int(local)), self.otherwise) for local in local_C])
        return step_s, step_s


def test_holes_and_noise_in_a_profile_are_stepped_around():
    seconds = {(1, 8): 1.0, (2, 8): 0.5, (3, 8): 9.0, (4, 4): 0.4}  # three GPUs are slower; most was never measured
    speed = BatchScaling(step={GPU: Measured(seconds)}, batches=(8, 16, 24), max_local={GPU: 8})
    assert [speed.batch(GPU, (k,)) for k in range(1, 6)] == [8, 16, 24, 16, None]
    assert sizes(town(elastic("a", speed), gpus=8)) == {"a": 4}
    assert sizes(town(elastic("a", speed), gpus=3)) == {"a": 2}


def test_where_one_full_gpu_was_never_measured_every_gpu_counts_as_one():
    speed = BatchScaling(step={GPU: Measured({(2, 8): 0.5, (3, 8): 0.4})}, batches=(16, 24), max_local={GPU: 8})
    assert [speed.factor(GPU, (k,)) for k in (1, 2, 3, 4)] == [0.0, 2.0, 3.0, 0.0]


def test_a_step_time_that_is_no_time_is_an_error():
    speed = BatchScaling(step={GPU: Measured({}, otherwise=np.nan)}, batches=(8,), max_local={GPU: 8})
    with pytest.raises(InvalidValue, match="step time"):
        speed.rate(GPU, (1,), 0.0)


# ---------------------------------------------------------------------- who gets what


def test_the_plan_says_the_batch_that_goes_with_the_gpus_and_changes_it_with_them():
    driver = town(elastic("a"))
    assert driver.kernel.jobs["a"].shape.batch == 2048
    driver.now_s = 600.0
    driver.submit(*(elastic(f"b{at}") for at in range(7)))
    driver.settle(ElasticBatch())
    assert {state.shape.gpus for state in driver.kernel.active.values()} == {1}
    assert {state.shape.batch for state in driver.kernel.active.values()} == {256}


def test_a_job_without_a_batch_model_goes_by_its_own_speed():
    driver = town(elastic("a", Linear()), elastic("b", PowerLaw(exponent=0.5)))
    assert sizes(driver) == {"a": 7, "b": 1}
    assert {state.shape.batch for state in driver.kernel.active.values()} == {None}


def test_a_speed_that_changes_with_progress_is_taken_as_it_is_now():
    late = Phased(ends=(1.0, 2.0), rates=lambda gpu, spread: (1.0, float(sum(spread))))
    assert sizes(town(elastic("early", late, work=2.0), elastic("b", PowerLaw(exponent=0.5)))) == {"early": 1, "b": 7}


def test_nothing_changes_between_two_regular_decisions():
    driver = town(elastic("a"))
    driver.now_s = 10.0
    driver.submit(elastic("b"))
    driver.settle(ElasticBatch())
    assert sizes(driver) == {"a": 8}
    assert driver.timers[PlanAgain()] == 600.0
    driver.ring([PlanAgain()])
    driver.settle(ElasticBatch())
    assert sizes(driver) == {"a": 4, "b": 4}


def test_an_idle_cluster_does_not_wait_for_the_hour():
    driver = town(elastic("a"))
    driver.now_s = 10.0
    driver.submit(elastic("b"))
    driver.settle(ElasticBatch())
    driver.tell(JobFinished(20.0, "a"))
    driver.settle(ElasticBatch())
    assert sizes(driver) == {"b": 8}


def test_a_lost_node_is_answered_at_once():
    driver = Driver([an_offer("o", gpus=4, pool="p")], limits={"o": Limit(max_nodes=2)})
    driver.submit(elastic("a"), elastic("b"))
    driver.settle(ElasticBatch())
    driver.tell(AvailabilityChanged(10.0, "o", 1))
    driver.tell(NodeLost(10.0, min(driver.kernel.cluster.nodes)))
    driver.settle(ElasticBatch())
    assert sum(sizes(driver).values()) == 4
    assert {state.phase for state in driver.kernel.active.values()} == {Phase.RUNNING}


def test_who_does_not_fit_waits_and_smaller_ones_pass():
    wide = elastic("wide", scaling().fixed(2048), min_gpus=1)
    driver = town(elastic("a", scaling().fixed(1024)), wide, elastic("c", scaling().fixed(32)))
    assert set(sizes(driver)) == {"a", "c"}
    assert wide.id in {state.job.id for state in driver.kernel.waiting.by(lambda state: 0.0)}


def test_dropped_jobs_stay_dropped_and_are_told_so():
    policy = ElasticBatch(drop=True)
    jobs = [a_job(name, gpus=8, min_gpus=8, speed=scaling().fixed(2048), work=1e7) for name in ("a", "b")]
    driver = town(*jobs, policy=policy)
    assert sizes(driver) == {"a": 8}
    assert "dropped" in policy.decide(driver.kernel.snapshot()).warnings["b"]
    driver.tell(JobFinished(700.0, "a"))
    driver.settle(policy)
    assert sizes(driver) == {}
    queueing = ElasticBatch()
    assert "b" in queueing.decide(driver.kernel.snapshot()).shapes


def test_a_simulation_that_drops_says_which_jobs_never_ran():
    jobs = [a_job(f"j{at}", gpus=4, min_gpus=4, work=4000.0, submit_s=float(at)) for at in range(3)]
    cloud = Cloud(offers=[an_offer("o", gpus=4)], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    assert simulate(jobs, ElasticBatch(drop=True), cloud, checked=True).unfinished == ("j1", "j2")
    assert simulate(jobs, ElasticBatch(), cloud, checked=True).unfinished == ()


def test_a_job_whose_batches_fit_on_none_of_its_widths_waits_and_its_owner_is_told():
    driver = town(elastic("a", scaling(low=512), high=1), elastic("b"))
    assert set(sizes(driver)) == {"b"}
    driver.now_s = 600.0
    driver.submit(elastic("c"))
    warnings = ElasticBatch().decide(driver.kernel.snapshot()).warnings
    assert warnings == {"a": "no batch from 512 to 2048 fits on 1 to 1 GPUs; it waits"}


def test_a_job_with_no_speed_here_waits_and_its_owner_is_told():
    driver = Driver([an_offer("o", gpus=4)], limits={"o": Limit(max_nodes=1)})
    driver.submit(elastic("a", Table(rates={"A100": {1: 1.0}})))
    plan = ElasticBatch().decide(driver.kernel.snapshot())
    assert plan.shapes == {}
    assert "speed is 0" in plan.warnings["a"]


def test_stickiness_keeps_a_job_from_moving_for_little():
    jobs = [elastic("a", PowerLaw(exponent=0.9)), elastic("b", PowerLaw(exponent=0.89))]
    driver = town(jobs[0], gpus=7)
    driver.now_s = 600.0
    driver.submit(jobs[1])
    driver.settle(ElasticBatch())
    moved = sizes(driver)
    assert sum(moved.values()) == 7
    sticky = ElasticBatch(stickiness=0.5).decide(driver.kernel.snapshot())
    assert sticky.shapes == {}


# ---------------------------------------------------------------------- the best of all splits

speeds = st.one_of(
    st.sampled_from([0.3, 0.6, 0.9, 1.0]).map(lambda p: PowerLaw(exponent=p)),
    st.sampled_from([1, 2, 3]).map(lambda k: scaling(low=32, high=32 * 2**k, local=64)),
    st.sampled_from([32, 128, 256]).map(lambda batch: scaling(low=32, high=256, local=64).fixed(batch)),
    st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, 4.0]), min_size=4, max_size=4).map(
        lambda rates: Table(rates={GPU: {at + 1: rate for at, rate in enumerate(rates)}})
    ),
)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(speeds, min_size=1, max_size=4), st.integers(1, 7))
def test_no_other_split_of_the_admitted_has_a_greater_sum_of_scaling_factors(drawn, gpus):
    jobs = [elastic(f"j{at}", speed, high=4) for at, speed in enumerate(drawn)]
    given_to = sizes(town(*jobs, gpus=gpus))
    admitted = [job for job in jobs if job.id in given_to]

    def factor(job, width):
        rate = job.speed.rate(GPU, (width,), 0.0)
        if isinstance(job.speed, BatchScaling):
            return job.speed.factor(GPU, (width,))
        one = job.speed.rate(GPU, (1,), 0.0)
        first = next((k for k in range(1, 5) if k <= gpus and job.speed.rate(GPU, (k,), 0.0) > 0), 1)
        return rate / (one or job.speed.rate(GPU, (first,), 0.0) / first or 1.0)

    tables = [[factor(job, width) or -np.inf for width in range(1, 5)] for job in admitted]
    every = [
        sum(row[width - 1] for row, width in zip(tables, widths, strict=True))
        for widths in product(range(1, 5), repeat=len(admitted))
        if sum(widths) <= gpus
    ]
    ours = sum(row[given_to[job.id] - 1] for row, job in zip(tables, admitted, strict=True))
    assert ours == pytest.approx(max(every, default=0.0))


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(speeds, min_size=1, max_size=5), st.integers(1, 7))
def test_who_is_admitted_is_whom_the_dynamic_program_finds_room_for(drawn, gpus):
    jobs = [elastic(f"j{at}", speed, high=4) for at, speed in enumerate(drawn)]
    rows, admitted = Rows.of(gpus), set()
    for job in jobs:
        table = [job.speed.rate(GPU, (width,), 0.0) or -np.inf for width in range(1, 5)]
        tried = rows.with_job(table, sizes=[1, 2, 3, 4])
        if tried.total() > -np.inf:
            rows, admitted = tried, admitted | {job.id}
    assert set(sizes(town(*jobs, gpus=gpus))) == admitted


@pytest.mark.parametrize(("stickiness", "stays"), [(0.15, False), (0.17, True)])
def test_stickiness_is_a_part_of_what_a_job_gains_where_it_is(stickiness, stays):
    """Two and one as they are gain 1.5 and 1, or 1 and 1.9 the other way round: 2.9 is 1.16 times as much."""
    tables = [Table(rates={GPU: {1: 1.0, 2: second}}) for second in (1.5, 1.9)]
    driver = town(elastic("a", tables[0], high=2), elastic("b", Table(rates={GPU: {1: 1.0, 2: 1.1}}), high=2), gpus=3)
    assert sizes(driver) == {"a": 2, "b": 1}
    state = driver.kernel.snapshot()
    other = replace(state.active["b"], job=replace(state.active["b"].job, speed=tables[1]))
    now = replace(state, active={**state.active, "b": other}, woken=True)
    plan = ElasticBatch(stickiness=stickiness).decide(now)
    assert {job_id: shape.gpus for job_id, shape in plan.shapes.items()} == ({} if stays else {"a": 1, "b": 2})

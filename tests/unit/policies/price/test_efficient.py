"""Which shapes of a job are worth their GPUs on a cluster that is paid for anyway."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl, PowerLaw
from sublet.planning.jobs import read_jobs
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import HURRY, value_of_time
from sublet.policies.price.cluster_split import LEAST_POWER, efficient, efficient_shapes
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


@dataclass
class Menu:
    """As much of a menu as the rule reads."""

    rate_EC: np.ndarray
    gpus_C: np.ndarray
    row_KC: np.ndarray
    doubt_C: np.ndarray | None = None

    __hash__ = object.__hash__


def worth(rate, gpus, *, row=None, doubt=None):
    rate_C, row_C = np.array(rate, dtype=float), np.zeros(len(gpus), dtype=int) if row is None else np.array(row)
    menu = Menu(rate_C[None], np.array(gpus, dtype=float), row_C[None], None if doubt is None else np.array(doubt))
    return efficient_shapes(menu, 0).tolist()


def test_the_narrowest_counts_and_each_that_does_enough_more_than_the_last_that_counts():
    grows = 2.0**LEAST_POWER
    assert worth([1.0, grows * 1.001], [1, 2]) == [True, True]
    assert worth([1.0, grows * 0.999], [1, 2]) == [True, False]
    # two do not do enough more, four do beside one, and eight beside four do not
    assert worth([1.0, 1.15, 1.45, 1.5], [1, 2, 4, 8]) == [True, False, True, False]
    assert worth([1.5, 1.45, 1.15, 1.0], [8, 4, 2, 1]) == [False, True, False, True]


def test_what_cannot_train_does_not_count_and_is_not_compared_with():
    assert worth([0.0, 1.0, 1.5], [1, 2, 4]) == [False, True, True]
    assert worth([0.0], [1]) == [False]


def test_each_pool_by_itself():
    assert worth([5.0, 1.0, 1.5], [1, 1, 2], row=[0, 1, 1]) == [True, True, True]


def test_of_as_many_gpus_spread_otherwise_all_count_and_the_fastest_is_compared_with():
    assert worth([1.5, 2.0, 2.1], [2, 2, 4]) == [True, True, False]


def test_where_speeds_are_in_doubt_all_may_be_tried():
    assert worth([1.0, 1.0, 1.0], [1, 2, 4], doubt=[0.1, 0.1, 0.1]) == [True, True, True]


@given(
    st.lists(
        st.tuples(st.floats(0.0, 10.0), st.integers(1, 16), st.integers(0, 1)), min_size=1, max_size=12, unique=True
    )
)
def test_its_twin_walks_over_the_widths_of_each_pool(shapes):
    """By hand, width by width: the fastest of a width stands for it."""
    rate, gpus, row = (list(each) for each in zip(*shapes, strict=True))
    expected = [False] * len(shapes)
    for pool in (0, 1):
        last = None  # GPUs and rate of the widest that counts
        for width in sorted({n for n, r in zip(gpus, row, strict=True) if r == pool}):
            of_it = [at for at in range(len(shapes)) if gpus[at] == width and row[at] == pool and rate[at] > 0.0]
            fastest = max((rate[at] for at in of_it), default=0.0)
            if not of_it or (last and fastest < last[1] * (width / last[0]) ** LEAST_POWER * (1 - 1e-12)):
                continue
            for at in of_it:
                expected[at] = True
            last = (width, fastest)
    assert worth(rate, gpus, row=row) == expected


OFFER = an_offer("o", gpus=8, market=Market.ON_DEMAND)
STOPS = a_job("stops", speed=Amdahl(parallel=0.35), gpus=1, max_gpus=8)  # n GPUs do the work of n / (0.65 n + 0.35)


def widths(*jobs, hour_usd=None):
    driver = Driver([OFFER], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    driver.submit(*jobs)
    driver.settle(Price(hour_usd=hour_usd))
    return {name: state.gpus for name, state in driver.kernel.active.items()}


def test_who_is_alone_leaves_idle_what_would_hardly_help_and_takes_it_where_it_is_late():
    """1.21 with two, more than 2 ** 0.25; 1.08 of that with three and 1.19 with eight, less than (n / 2) ** 0.25."""
    assert widths(STOPS) == {"stops": 2}
    assert widths(replace(STOPS, speed=PowerLaw(exponent=0.26))) == {"stops": 8}
    assert widths(replace(STOPS, speed=PowerLaw(exponent=0.24))) == {"stops": 1}


def test_who_is_in_a_hurry_takes_all_that_helps():
    assert widths(replace(STOPS, deadline_s=1e6)) == {"stops": 8}
    assert widths(replace(STOPS, hurry=True)) == {"stops": 8}
    assert widths(STOPS, hour_usd=HURRY) == {"stops": 8}


def test_its_owner_hears_that_it_is_not_the_quickest():
    driver = Driver([OFFER], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    driver.submit(STOPS, replace(STOPS, id="late", deadline_s=1e6, max_gpus=4))
    said = Price().decide(driver.kernel.snapshot()).reasons
    assert said["stops"].endswith("best throughput per GPU on GPUs already paid for")
    assert said["late"].endswith("USD 0.00")


def test_rows_of_jobs_of_several_kinds_stand_side_by_side():
    driver = Driver([OFFER], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    driver.submit(STOPS, replace(STOPS, id="narrow", max_gpus=2), replace(STOPS, id="late", deadline_s=1e6))
    snapshot = driver.kernel.snapshot()
    terms = Terms.from_snapshot(snapshot)
    waiting = list(snapshot.waiting.by(lambda state: state.seq))
    jobs = read_jobs(waiting, terms.sites, terms.now_s)
    some, every = [True, True] + [False] * 6, [True] * 8
    assert efficient(jobs, value_of_time(terms, hour_usd=None)).tolist() == [some, some, every]
    assert efficient(jobs, value_of_time(terms, hour_usd=HURRY)).tolist() == [every, every, every]


@pytest.mark.parametrize("held", [3, 5])
def test_the_rule_says_nothing_of_rented_gpus(held):
    """There rent says what a GPU is worth."""
    driver = Driver([OFFER], limits={"o": Limit(max_nodes=1)})
    driver.submit(replace(STOPS, min_gpus=held, gpus=held, max_gpus=held))
    driver.settle(Price())
    assert driver.kernel.active["stops"].gpus == held

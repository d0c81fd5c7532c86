"""Money is kept for the least of each job where the cheapest row could use all of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Budget
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.planning.terms import Terms
from sublet.policies.price.congestion import obtainable_with_least
from sublet.testing.driver import Driver
from sublet.testing.values import an_offer

SPOT_USD, STEADY_USD = 1, 3


def terms_of(usd_per_h, *, gpus=1):
    """One pool with both markets: rows of spot and on demand."""
    spot = an_offer("s", gpus=gpus, usd_per_h=str(gpus * SPOT_USD), pool="p")
    steady = an_offer("d", gpus=gpus, usd_per_h=str(gpus * STEADY_USD), pool="p", market=Market.ON_DEMAND)
    budget = Budget(burn=Price.from_usd_per_h(str(usd_per_h)))
    return Terms.from_snapshot(Driver([spot, steady], budget=budget).kernel.snapshot())


def asked(terms, jobs, *, wider=4):
    """Shapes of (least, core) jobs: from the least to so many more, all but the core on spot; by rank as listed."""
    gpus_KJC = np.array(
        [[[least - core + more, core] for more in range(wider + 1)] for least, core in jobs], dtype=float
    )
    gpus_KJC = gpus_KJC.transpose(2, 0, 1)
    row_KJC = np.zeros(gpus_KJC.shape, dtype=np.intp)
    row_KJC[1] = 1
    able_JC = (gpus_KJC <= terms.alone_R[:, None, None]).all(axis=0)
    wanted_R = np.where(able_JC, gpus_KJC, 0.0).max(axis=2).sum(axis=1)
    rank_J = np.arange(len(jobs), dtype=float)
    return wanted_R, {"row_KJC": row_KJC, "gpus_KJC": gpus_KJC, "able_JC": able_JC, "rank_J": rank_J}


def found(terms, wanted_R, shapes):
    return obtainable_with_least(terms, wanted_R, terms.obtainable(wanted_R), **shapes)


def test_the_core_is_paid_first_and_the_rest_goes_to_spot():
    terms = terms_of(5)
    wanted_R, shapes = asked(terms, [(1, 1)])
    assert wanted_R.tolist() == [4, 1]
    assert terms.obtainable(wanted_R).tolist() == [5, 0]
    assert found(terms, wanted_R, shapes).tolist() == [2, 1]


@pytest.mark.parametrize(("usd_per_h", "jobs"), [(3, [(1, 0)]), (20, [(1, 1)])])
def test_nothing_is_kept_where_all_can_do_without_the_dear_row_or_there_is_money_for_all(usd_per_h, jobs):
    terms = terms_of(usd_per_h)
    wanted_R, shapes = asked(terms, jobs)
    assert found(terms, wanted_R, shapes).tolist() == terms.obtainable(wanted_R).tolist()


def test_who_ranks_first_has_its_whole_least_before_the_core_of_the_next():
    terms = terms_of(6)
    wanted_R, shapes = asked(terms, [(3, 1), (3, 1)])
    assert found(terms, wanted_R, shapes).tolist() == [3, 1]  # two cores would be all there is


def test_one_whose_least_is_beyond_the_money_stands_in_the_way_of_nobody():
    terms = terms_of(4)
    wanted_R, shapes = asked(terms, [(3, 1), (1, 1)])
    assert found(terms, wanted_R, shapes).tolist() == [1, 1]


def test_the_least_is_told_by_whole_nodes():
    terms = terms_of(14, gpus=4)  # a node on demand is USD 12 an hour: spot beside it would be 4 more
    gpus_KJC = np.array([[[1.0, 0.0, 4.0]], [[1.0, 2.0, 4.0]]])
    row_KJC = np.array([[[0, 0, 0]], [[1, 1, 1]]])
    shapes = {
        "row_KJC": row_KJC,
        "gpus_KJC": gpus_KJC,
        "able_JC": np.ones((1, 3), dtype=np.bool_),
        "rank_J": np.zeros(1),
    }
    found_R = found(terms, np.array([4.0, 4.0]), shapes)
    assert found_R.tolist() == [0, 4]


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=6))
def test_the_first_in_rank_fit_together_as_far_as_money_goes(usd_per_h, drawn):
    jobs = [(max(least, core), core) for least, core in drawn]
    terms = terms_of(usd_per_h)
    wanted_R, shapes = asked(terms, jobs)
    if not shapes["able_JC"].any(axis=1).all():
        return  # `share_pools` asks nobody who cannot run in any shape
    found_R = found(terms, wanted_R, shapes)
    assert found_R @ [SPOT_USD, STEADY_USD] <= usd_per_h
    need_R, room = np.zeros(2), True
    for least, core in jobs:
        least_R = np.array([least - core, core])
        if least_R @ [SPOT_USD, STEADY_USD] > usd_per_h:
            continue
        room = room and (need_R + least_R) @ [SPOT_USD, STEADY_USD] <= usd_per_h
        need_R += least_R if room else 0
    assert (found_R >= need_R).all()

"""The split of a cluster that is worth most, beside trying every split; and who need not be valued at all."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import value_of_time
from sublet.policies.price.choices import ask
from sublet.policies.price.cluster_split import (
    TOLERANCE,
    _are_content,
    _claims,
    _median,
    _must_run,
    _possible,
    _sure,
    _values,
    split,
)
from sublet.policies.price.congestion import WAIT
from sublet.policies.price.decision import Decision
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

ALWAYS_S = 1e9  # nobody has waited for so long
ALL = np.array([[True]])  # shapes are worth their GPUs


def claims_of(wanted, gpus, *, settled=False):
    """Jobs as (hours, least, more, parallel) on pools of so many GPUs each, which are paid for."""
    pools = [f"p{at}" for at in range(len(gpus))]
    offers = [an_offer(name, gpus=1, pool=name, market=Market.ON_DEMAND) for name in pools]
    limits = {name: Limit(min_nodes=most, max_nodes=most) for name, most in zip(pools, gpus, strict=True)}
    driver = Driver(offers, limits=limits)
    driver.submit(
        *(
            a_job(
                f"j{at}", work=3600.0 * hours, gpus=least, min_gpus=least, max_gpus=least + more,
                speed=Amdahl(parallel=parallel), restart_s=30.0,
            )
            for at, (hours, least, more, parallel) in enumerate(wanted)
        )
    )  # fmt: skip
    if settled:
        driver.settle(Price())
    terms = Terms.from_snapshot(driver.kernel.snapshot())
    decision = Decision.read(terms, value_of_time(terms).over, review_s=60.0, patience_s=ALWAYS_S)
    asked, _ = ask(decision, decision.jobs)
    return _claims(decision, asked, ALL), asked, decision


def best_of_all(claims, most_R):
    """By trying everything: as few as can be wait that must run, and then the most value."""
    can_JC = _possible(claims, most_R)
    value_JC, must_J = _values(claims, can_JC, most_R), _must_run(claims, float(most_R.sum()))
    best = (-np.inf, -np.inf)
    for column_J in itertools.product(*([WAIT, *np.flatnonzero(can_C)] for can_C in can_JC)):
        best = max(best, worth(claims, column_J, value_JC, must_J, most_R))
    return best, value_JC, must_J


def worth(claims, column_J, value_JC, must_J, most_R):
    """(minus those that must run and wait, value); nothing where it does not fit."""
    used_R = np.zeros(len(most_R))
    for job, column in enumerate(column_J):
        if column != WAIT:
            np.add.at(used_R, claims.table.row_KJC[:, job, column], claims.table.gpus_KJC[:, job, column])
    if (used_R > most_R).any():
        return (-np.inf, -np.inf)
    runs = [(job, column) for job, column in enumerate(column_J) if column != WAIT]
    return -sum(must_J[job] for job, column in enumerate(column_J) if column == WAIT), sum(value_JC[at] for at in runs)


crowds = st.lists(
    st.tuples(st.sampled_from([0.1, 1.0, 9.0]), st.integers(1, 3), st.integers(0, 2), st.sampled_from([0.3, 0.9])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(50))
@given(crowds, st.integers(1, 6), st.booleans())
def test_of_one_pool_no_other_split_is_worth_more(wanted, gpus, settled):
    claims, _, decision = claims_of(wanted, [gpus], settled=settled)
    (waits, value), value_JC, must_J = best_of_all(claims, decision.terms.alone_R)
    found = split(claims, decision.terms.alone_R)
    ours = worth(claims, found.column_J.tolist(), value_JC, must_J, decision.terms.alone_R)
    assert ours[0] == waits
    assert ours[1] == pytest.approx(value)
    assert found.price_R.shape == (1,)
    assert (found.price_R >= 0.0).all()


@settings(max_examples=examples(40))
@given(crowds.filter(lambda wanted: len(wanted) <= 3), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_of_two_pools_none_is_worth_much_more(wanted, here, there, settled):
    claims, _, decision = claims_of(wanted, [here, there], settled=settled)
    (waits, value), value_JC, must_J = best_of_all(claims, decision.terms.alone_R)
    found = split(claims, decision.terms.alone_R)
    ours = worth(claims, found.column_J.tolist(), value_JC, must_J, decision.terms.alone_R)
    assert ours[0] >= waits
    everything = value_JC.max(axis=1, initial=0.0).sum()
    assert ours[1] >= value - TOLERANCE * (1.0 + everything) * (1 + len(wanted)) - 1e-9
    assert found.price_R.shape == (2,)


def test_who_trains_in_the_fastest_shape_or_has_no_other_need_not_be_valued():
    settled, _, decision = claims_of([(9.0, 1, 2, 0.9), (9.0, 1, 1, 0.9)], [8], settled=True)
    can_JC = _possible(settled, decision.terms.alone_R)
    assert _sure(settled, can_JC).tolist() == (settled.runs_J - WAIT).tolist()
    new, _, decision = claims_of([(9.0, 2, 0, 0.9), (9.0, 3, 0, 0.9)], [8])
    assert _sure(new, _possible(new, decision.terms.alone_R)).tolist() == [1, 1]
    many, _, decision = claims_of([(9.0, 2, 0, 0.9), (9.0, 3, 2, 0.9)], [8])
    assert _sure(many, _possible(many, decision.terms.alone_R)) is None


@pytest.mark.parametrize("numbers", [[3.0], [1.0, 4.0], [5.0, 1.0, 9.0], [2.0, 2.0, 7.0, 1.0], [0.5] * 5])
def test_the_median_is_the_median(numbers):
    assert _median(np.array(numbers)) == np.median(numbers)


# ---------------------------------------------------------------------- content


def content(*, jobs=None, table=None, column_J=None):
    """Two jobs that have the fastest there is, unless something is changed."""
    _, asked, decision = claims_of([(9.0, 1, 2, 0.9), (9.0, 1, 1, 0.9)], [8], settled=True)
    changed = replace(asked, jobs=replace(asked.jobs, **(jobs or {})), table=replace(asked.table, **(table or {})))
    return _are_content(decision, changed, ALL, asked.jobs.own_J if column_J is None else column_J)


def test_who_has_the_fastest_is_content():
    assert content()


@pytest.mark.parametrize(
    "change",
    [
        {"table": {"last_J": np.array([True, False])}},  # another phase is ahead
        {"jobs": {"purse_J": np.array([True, False])}},
        {"jobs": {"core_J": np.array([False, True])}},
        {"table": {"doubted_J": np.array([True, False])}},
    ],
)
def test_whose_phase_money_core_or_speed_may_change_is_not(change):
    assert not content(**change)


def test_who_has_all_that_is_worth_its_gpus_is_content_with_less_than_the_fastest():
    _, asked, decision = claims_of([(9.0, 1, 2, 0.9), (9.0, 1, 1, 0.9)], [8], settled=True)
    column_J = np.array([asked.jobs.own_J[0] - 1, asked.jobs.own_J[1]])
    efficient_JC = np.ones(asked.table.rate_JC.shape, dtype=bool)
    assert not _are_content(decision, asked, efficient_JC, column_J)
    efficient_JC[0, column_J[0] + 1 :] = False
    assert _are_content(decision, asked, efficient_JC, column_J)


def test_who_waits_or_has_less_than_the_fastest_is_not():
    _, asked, _ = claims_of([(9.0, 1, 2, 0.9), (9.0, 1, 1, 0.9)], [8], settled=True)
    own_J = asked.jobs.own_J
    assert not content(column_J=np.array([own_J[0], WAIT]))
    assert not content(column_J=np.array([0, own_J[1]]))


def test_while_somebody_was_not_asked_nobody_knows():
    _, asked, decision = claims_of([(9.0, 1, 2, 0.9), (9.0, 1, 1, 0.9)], [8], settled=True)
    one = replace(asked, jobs=asked.jobs.take([0]), table=asked.table.take([0]))
    assert not _are_content(decision, one, ALL, asked.jobs.own_J[:1])


def test_those_who_run_and_those_who_wait_are_everybody():
    _, asked, decision = claims_of([(9.0, 1, 2, 0.9), (9.0, 1, 1, 0.9)], [8], settled=True)
    _, new, before = claims_of([(9.0, 1, 2, 0.9), (9.0, 1, 1, 0.9)], [8])
    assert decision.count == len(asked.jobs.states) == 2
    assert before.count == len(new.jobs.states) == 2

"""A deadline of a job with phases ahead: the least value of time that keeps it is found by trial, by hand here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sublet.domain.shape import Shape
from sublet.perf.phased import Phased
from sublet.planning.menu import menu_of
from sublet.planning.options import Options
from sublet.planning.terms import Terms
from sublet.policies.price.choices import in_time
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

TERMS = Terms.from_snapshot(Driver([an_offer("o", gpus=1, pool="p")]).kernel.snapshot())
MENU = menu_of(a_job("a", gpus=1, max_gpus=2), TERMS.sites)
SLOW, FAST = (MENU.column[Shape("p", gpus)] for gpus in (1, 2))


def options_at(value_of_time, *, last=False):
    """Ten hours for 10 USD, or four for 20: from 10 / 6 USD an hour on the second is best."""
    hours = np.empty(2)
    hours[SLOW], hours[FAST] = 10.0, 4.0
    money = np.empty(2)
    money[SLOW], money[FAST] = 10.0, 20.0
    cost = value_of_time * hours + money
    return Options(menu=MENU, value_of_time=value_of_time, cost_C=cost, now_C=hours, hours_C=hours, in_last_phase=last)


def tried(left_h, value=1.0):
    asked = []

    def at(value_of_time):
        asked.append(value_of_time)
        return options_at(value_of_time)

    found, warning = in_time(at, options_at(value), left_h)
    return found, warning, asked


def test_a_deadline_that_is_kept_anyway_costs_no_trial():
    plain = options_at(1.0)
    found, warning, asked = tried(10.0 / 0.95)  # with a twentieth to spare
    assert (found.value_of_time, warning, asked) == (plain.value_of_time, "", [])
    assert tried(10.5)[2] != []


def test_the_value_is_raised_fourfold_until_it_is_kept_and_then_lowered_by_halves():
    """4 keeps it. Between 4 ** 0 and 4 ** 1 the border 10 / 6 is 4 ** 0.3685, of which 64 parts are told apart: 24."""
    found, warning, asked = tried(5.0)
    assert warning == ""
    assert found.best == FAST
    assert found.value_of_time == pytest.approx(4.0 ** (24 / 64))
    assert asked[0] == 4.0
    assert len(asked) == 1 + 6
    from_far, _, steps = tried(5.0, value=0.01)
    assert steps[:4] == pytest.approx([0.04, 0.16, 0.64, 2.56])
    assert 10 / 6 <= from_far.value_of_time <= 10 / 6 * 4 ** (1 / 64)


def test_if_need_be_it_is_kept_with_nothing_to_spare():
    found, warning, asked = tried(4.0)
    assert (found.best, warning) == (FAST, "")
    assert found.value_of_time == 4.0  # the first at which it was as fast as that
    assert len(asked) == 40


def test_where_nothing_keeps_it_the_owner_is_told_and_money_decides():
    found, warning, _ = tried(3.9)
    assert found.value_of_time == 1.0
    assert found.best == SLOW
    assert "4.0" in warning
    assert "3.9" in warning


def test_without_a_phase_ahead_lines_tell_where_they_cross():
    found, warning = in_time(options_at, options_at(1.0, last=True), 5.0)
    assert (found.best, warning) == (FAST, "")
    assert found.value_of_time == pytest.approx(10 / 6)
    late, warning = in_time(options_at, options_at(1.0, last=True), 3.9)
    assert late.value_of_time == 1.0
    assert warning
    just, warning = in_time(options_at, options_at(1.0, last=True), 4.0)
    assert (just.best, warning) == (FAST, "")


def test_who_can_run_nowhere_is_left_as_it_is():
    nowhere = replace(options_at(1.0), cost_C=np.full(2, np.inf))
    assert in_time(options_at, nowhere, 1.0) == (nowhere, "")


def test_the_owner_of_a_job_with_phases_ahead_is_told_that_nothing_keeps_its_deadline():
    phases = Phased(ends=(3600.0, 7200.0), rates=lambda gpu, spread: (1.0, 2.0))
    job = a_job("a", work=7200.0, speed=phases, gpus=1, max_gpus=1, deadline_s=600.0)
    driver = Driver([an_offer("o", gpus=1, pool="p")])
    driver.submit(job, replace(job, id="b", deadline_s=90_000.0))
    assert list(Price().decide(driver.kernel.snapshot()).warnings) == ["a"]

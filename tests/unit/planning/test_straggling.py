"""Who keeps a group waiting, and whether another node is cheaper than to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.planning.straggling import STRAGGLES, saved_by_replacing_s_usd, straggler_among

FACTS = {"left_s": 36_000.0, "slowdown": 3.0, "pause_s": 60.0, "boot_s": 240.0}
MONEY = {"job_usd_per_h": 4.0, "node_usd_per_h": 1.0}


def test_a_worker_at_three_times_its_peers_stands_out():
    found = straggler_among({"a": 1.0, "b": 1.2, "c": 1.1, "d": 4.4}, 5.0)
    assert found.worker_id == "d"
    assert found.times == pytest.approx(4.0)
    assert found.slowdown == pytest.approx(5.0 / 1.7)  # what a step takes now, against one without the 3.3 s


@pytest.mark.parametrize("own", [{}, {"a": 9.0}, {"a": 1.0, "b": 2.4}, {"a": 0.0, "b": 1.0}, {"a": 3.0, "b": 3.1}])
def test_nobody_stands_out_alone_or_among_equals(own):
    assert straggler_among(own, 4.0) is None


@given(st.dictionaries(st.text(min_size=1), st.floats(1e-6, 1e3), min_size=2), st.floats(0.0, 1e3))
def test_whoever_stands_out_is_the_slowest_and_makes_no_step_shorter(own, wait_s):
    found = straggler_among(own, max(own.values()) + wait_s)
    if found is not None:
        assert own[found.worker_id] == max(own.values())
        assert found.times >= STRAGGLES
        assert found.slowdown >= 1.0


def test_with_hours_left_another_node_is_cheaper_and_near_the_end_it_is_not():
    saved_s, usd = saved_by_replacing_s_usd(**FACTS, **MONEY)
    assert saved_s == pytest.approx(36_000 - (240 + 60 + 35_760 / 3))
    assert usd == pytest.approx(saved_s / 3600 * 4.0 - 240 / 3600)
    assert saved_by_replacing_s_usd(**{**FACTS, "left_s": 300.0}, **MONEY)[1] < 0.0


@given(st.floats(0.0, 1e6), st.floats(1.0, 10.0), st.floats(0.0, 1e4), st.floats(0.0, 1e4))
def test_a_node_that_slows_nobody_is_never_worth_replacing(left_s, slowdown, pause_s, boot_s):
    facts = {"left_s": left_s, "pause_s": pause_s, "boot_s": boot_s, **MONEY}
    assert saved_by_replacing_s_usd(**facts, slowdown=1.0)[1] <= 1e-9
    more = saved_by_replacing_s_usd(**{**facts, "left_s": 2.0 * left_s}, slowdown=slowdown)[1]
    assert more >= saved_by_replacing_s_usd(**facts, slowdown=slowdown)[1] - 1e-6  # the more is left, the better

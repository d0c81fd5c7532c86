"""What was spent on each day: in all what was spent in all, midnight to midnight, however seldom anything happened."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.runtime.controller_api.views import SpentAt, days_from
from tests.rigs.story import Story, a_spec, trained

BEGIN = datetime(2026, 11, 16, 12, tzinfo=UTC)


def marks_of(*pairs):
    """(hours after the beginning, dollars until then)."""
    return [SpentAt(BEGIN + timedelta(hours=hours), usd) for hours, usd in pairs]


def days(pairs, now, first=1):
    marks = marks_of(*pairs)
    found = days_from(lambda seq: marks[seq - first], first, first + len(marks) - 1, marks_of(now)[0])
    return {row["day"]: row["usd"] for row in found}


def test_what_is_rented_over_midnight_is_of_both_days():
    assert days([(0, 0.0), (1, 1.0), (24, 24.0)], (36, 36.0)) == pytest.approx({"2026-11-16": 12.0, "2026-11-17": 24.0})


def test_a_day_on_which_nothing_happened_has_what_it_cost():
    found = days([(0, 0.0), (59, 59.0)], (59, 59.0))
    assert found == pytest.approx({"2026-11-16": 12.0, "2026-11-17": 24.0, "2026-11-18": 23.0})


def test_what_is_in_the_archive_is_earlier_and_not_of_the_first_day():
    assert days([(0, 500.0), (1, 501.0)], (2, 502.0), first=40_001) == {"": 500.0, "2026-11-16": 2.0}


def test_what_the_very_first_row_had_cost_is_of_its_day_where_nothing_is_in_the_archive():
    assert days([(0, 3.0), (1, 4.0)], (2, 5.0)) == {"2026-11-16": 5.0}


def test_before_anything_happened_there_is_nothing():
    assert days_from(lambda _: SpentAt(BEGIN, 0.0), 1, 0, SpentAt(BEGIN, 0.0)) == [{"day": "2026-11-16", "usd": 0.0}]


@given(
    st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.0, 10.0)), min_size=1, max_size=60),
    st.integers(1, 5),
)
def test_days_add_up_to_all_and_are_what_a_look_at_every_row_says(steps, first):
    pairs, hours, usd = [], 0.0, 0.0
    for more_h, more_usd in steps:
        hours, usd = hours + more_h, usd + more_usd
        pairs.append((hours, usd))
    found = days(pairs, (hours + 5.0, usd + 5.0), first)
    assert sum(found.values()) == pytest.approx(usd + 5.0)
    twin: dict[str, float] = {}
    whole = [(pairs[0][0], pairs[0][1] if first > 1 else 0.0), *pairs, (hours + 5.0, usd + 5.0)]
    if first > 1:
        twin[""] = pairs[0][1]
    for (at, was), (then, will) in pairwise(whole):
        edges = [at, *[e for e in (12.0 + 24.0 * n for n in range(140)) if at < e < then], then]
        for low, high in pairwise(edges):
            day = (BEGIN + timedelta(hours=low)).date().isoformat()
            twin[day] = twin.get(day, 0.0) + (will - was) * ((high - low) / (then - at) if then > at else 1.0)
    assert {day: usd for day, usd in found.items() if usd > 1e-6} == pytest.approx(
        {day: usd for day, usd in twin.items() if usd > 1e-6}, abs=1e-6
    )


@pytest.mark.usefixtures("virtual_time")
def test_the_bill_of_a_controller_has_its_days(tmp_path):
    async def live():
        async with Story(tmp_path).controller() as api:
            await api.submit(a_spec())
            await trained(api, "j-1", 20)
            return await api.cost(), await api.cost("j-1")

    cost, of_one = asyncio.run(live())
    assert cost["usd_total"] > 0
    assert sum(day["usd"] for day in cost["days"]) == pytest.approx(cost["usd_total"])
    assert of_one["days"] == []

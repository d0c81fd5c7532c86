"""What a price or an availability is at an instant, against a scan of all rows."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sublet.market.hazard import trace_hazard
from sublet.market.prices import NOT_STATED, PriceBook
from sublet.market.spot import SpotTrace, read_trace
from sublet.market.steps import Steps


@st.composite
def step_functions(draw, low=0, high=5):
    t_s = sorted(draw(st.sets(st.integers(0, 200), min_size=1, max_size=20)))
    value = draw(st.lists(st.integers(low, high), min_size=len(t_s), max_size=len(t_s)))
    return Steps(t_s=np.array(t_s, dtype=float), value=np.array(value))


@st.composite
def traces(draw):
    zones = {f"z{index}": steps for index, steps in enumerate(draw(st.lists(step_functions(), min_size=1, max_size=4)))}
    last_s = max(float(steps.t_s[-1]) for steps in zones.values())
    span_s = last_s + draw(st.integers(1, 50))
    return SpotTrace(
        name="t",
        series=zones,
        end_s=dict.fromkeys(zones, span_s),
        span_s=span_s,
        max_available=5,
        repeat=draw(st.booleans()),
    )


def scanned(steps, t_s, before):
    found = before
    for start_s, value in zip(steps.t_s, steps.value, strict=True):
        if start_s <= t_s:
            found = value
    return found


@given(step_functions(), st.integers(-10, 250))
def test_a_step_function_agrees_with_a_scan_of_its_rows(steps, t_s):
    expected = scanned(steps, t_s, before=7)
    assert steps.at(t_s, before=7) == steps.compact().at(t_s, before=7) == expected
    assert steps.many(np.array([float(t_s)]), before=7).tolist() == [expected]


@given(step_functions(low=NOT_STATED), st.integers(-10, 250), st.integers(-10, 250))
def test_price_changes_replayed_give_the_price_at_every_instant(steps, start_s, end_s):
    book = PriceBook(series={"k": steps})
    changes = list(book.changes("k", start_s, end_s))
    assert [t_s for t_s, _ in changes] == sorted({t_s for t_s, _ in changes})
    for t_s in range(start_s, end_s):
        stated = [v for s, v in zip(steps.t_s, steps.value, strict=True) if s <= t_s and v != NOT_STATED]
        price = book.price_at("k", t_s)
        assert (price.micro_usd_per_h if price else None) == (stated[-1] if stated else None)
        assert price == next((price for at_s, price in reversed(changes) if at_s <= t_s), None)
    assert all(one[1] != other[1] for one, other in pairwise(changes))


@given(traces(), st.integers(0, 600), st.integers(0, 300))
def test_events_replayed_reproduce_the_trace(trace, start_s, length_s):
    end_s = start_s + length_s
    events = list(trace.events(start_s, end_s))
    assert [event.t_s for event in events] == sorted(event.t_s for event in events)
    state, position = {}, 0
    for t_s in range(start_s, end_s):
        while position < len(events) and events[position].t_s <= t_s:
            assert state.get(events[position].zone) != events[position].available  # nothing is said twice
            state[events[position].zone] = events[position].available
            position += 1
        assert state == {zone: trace.value_at(zone, t_s) for zone in trace.zones}
    assert position == len(events)


@given(traces())
def test_pooled_ticks_are_the_sum_of_the_zones(trace):
    once = replace(trace, repeat=False)
    expected = [sum(once.value_at(zone, t_s) for zone in once.zones) for t_s in np.arange(0.0, once.span_s, 7.0)]
    assert once.per_tick(7.0).tolist() == expected


@given(traces())
def test_hazard_counts_agree_with_a_second_by_second_count(trace):
    pooled = trace_hazard(replace(trace, repeat=False)).pooled
    losses, instance_s = 0, 0
    for steps in trace.series.values():
        seconds = [scanned(steps, t_s, before=0) for t_s in range(int(trace.span_s))]
        losses += sum(max(0, one - other) for one, other in pairwise(seconds))
        instance_s += sum(seconds)
    assert pooled.losses == losses
    assert np.isclose(pooled.instance_h, instance_s / 3600)
    assert pooled.losses <= pooled.launches


@given(st.floats(0.05, 2.0), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_the_hazard_of_a_made_trace_lies_in_its_interval(hazard_per_h, nodes, seed):
    """Nodes die at a constant rate and come back after a delay of their own, so falls and rises never cancel."""
    rng = np.random.default_rng(seed)
    span_s = 100 * 3600.0
    moves = []  # (time, change)
    for _ in range(nodes):
        t_s = 0.0
        while t_s < span_s:
            t_s += rng.exponential(3600.0 / hazard_per_h)
            moves.append((t_s, -1))
            t_s += rng.uniform(60.0, 1200.0)
            moves.append((t_s, +1))
    seen = sorted(move for move in moves if move[0] < span_s)
    t_s = np.array([0.0, *(move[0] for move in seen)])
    value = nodes + np.cumsum([0, *(move[1] for move in seen)])
    steps = Steps(t_s=t_s, value=value)
    trace = SpotTrace(name="t", series={"z": steps}, end_s={"z": span_s}, span_s=span_s, max_available=nodes)
    low, high = trace_hazard(trace, confidence=1 - 1e-6).pooled.interval_per_h
    assert low <= hazard_per_h <= high


@given(traces())
def test_a_written_trace_reads_back(trace):
    rows = [
        (t_s, zone, value)
        for zone, steps in trace.series.items()
        for t_s, value in zip(steps.t_s, steps.value, strict=True)
    ]
    if len(rows) < 2 or len({row[0] for row in rows}) < 2:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_text("t_s,zone,available\n" + "".join(f"{t_s:g},{zone},{value}\n" for t_s, zone, value in rows))
        facts = {"span_s": trace.span_s, "repeat": trace.repeat}
        back = read_trace(path, polarity="availability", holes="hold", **facts)  # by chance they seem to have a rhythm
    assert list(back.events(0.0, 500.0)) == list(trace.events(0.0, 500.0))

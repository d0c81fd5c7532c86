"""However a trace file is broken: an error of ours that names the file, or a trace that says what its rows say."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.errors import SubletError
from sublet.market.traces import load_trace
from sublet_lab.forecasting.score import forecasters_for
from tests.rigs.sizes import examples

QUICK = ("persistence", "drift", "markov", "skilled")
ODD = ["-1", "-0", "nan", "inf", "", "1.5", "9999999", "x", " 3", "1e3"]


@st.composite
def files(draw):
    """Rows of one or two zones in a rhythm, and then some mischief."""
    tick_s = draw(st.sampled_from([1, 60, 300]))
    rows = []
    for zone in draw(st.sampled_from([("a",), ("a", "b")])):
        values = draw(st.lists(st.integers(0, draw(st.sampled_from([1, 16]))), min_size=1, max_size=25))
        rows += [[f"{tick_s * each}", zone, f"{value}"] for each, value in enumerate(values)]
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.integers(0, len(rows) - 1))
        match draw(st.sampled_from(["odd count", "odd time", "hole", "swap", "twice", "negative", "late", "drop"])):
            case "odd count":
                rows[row][2] = draw(st.sampled_from(ODD))
            case "odd time":
                rows[row][0] = draw(st.sampled_from(ODD))
            case "hole":
                rows[row:] = [[shifted(t_s, 1000 * tick_s), zone, value] for t_s, zone, value in rows[row:]]
            case "swap":
                other = draw(st.integers(0, len(rows) - 1))
                rows[row], rows[other] = rows[other], rows[row]
            case "twice":
                rows.insert(row, [*rows[row][:2], f"{draw(st.integers(0, 2))}"])
            case "negative":
                rows[row][2] = f"-{rows[row][2]}"
            case "late":
                rows[row][0] = shifted(rows[row][0], -2 * tick_s)
            case _ if len(rows) > 1:
                del rows[row]
    return rows


def shifted(t_s, by_s):
    try:
        return f"{float(t_s) + by_s:g}"
    except ValueError:
        return t_s


def loaded(rows, polarity):
    """The trace, or the error of ours; any other ends the test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken.csv"
        path.write_text("t_s,zone,available\n" + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
        try:
            return load_trace(path, polarity=polarity)
        except SubletError as error:
            return error


@settings(max_examples=examples(300))
@given(files(), st.sampled_from([None, "availability", "preempted"]))
def test_a_broken_trace_ends_in_our_own_error_or_says_what_its_rows_say(rows, polarity):
    trace = loaded(rows, polarity)
    if isinstance(trace, SubletError):
        assert "broken" in str(trace)
        return
    for t_s, zone, value in rows:
        assert trace.value_at(zone, float(t_s)) == (1 - int(value) if polarity == "preempted" else int(value))
    history = trace.per_tick(60.0).astype(float)
    most = trace.max_available * len(trace.zones)
    for name in QUICK:
        ahead = forecasters_for(trace)[name].forecast(history, 3)
        assert np.isfinite(ahead).all()
        assert ((ahead >= 0) & (ahead <= most)).all()


@settings(max_examples=examples(60))
@given(st.integers(4, 40), st.integers(1, 40), st.integers(5, 400))
def test_every_hole_of_more_than_three_ticks_is_found(before, after, missing):
    rows = [[f"{60 * each}", "z", "8"] for each in range(before + 16)]
    rows += [[f"{60 * (before + 16 + missing + each)}", "z", "7"] for each in range(after + 16)]
    error = loaded(rows, None)
    assert isinstance(error, SubletError)
    assert f"line {before + 16 + 2}: " in str(error)
    assert "without a row" in str(error)

"""Conformance of forecasters."""

from __future__ import annotations

import inspect
from time import perf_counter
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st

from sublet.errors import InvalidValue
from sublet.market.forecast import Forecaster
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps
from sublet.market.traces import load_trace
from sublet.solve.arrays import Floats
from sublet.testing.conformance import DrawingSuite, check_value
from sublet_lab.forecasting.score import FORECASTERS, forecast_errors

MOST = 32
LONGEST_SENTENCE = 120
SECONDS_AT_MOST = 0.25  # a tick at a time; statsmodels takes 15 ms, everyone else less than 2

pasts: st.SearchStrategy[Floats] = st.one_of(
    st.lists(st.integers(0, MOST), min_size=1, max_size=90),
    st.tuples(st.integers(0, MOST), st.integers(1, 90)).map(lambda flat: [flat[0]] * flat[1]),
    st.lists(st.integers(-3, 3), min_size=1, max_size=90).map(
        lambda moves: [int(value) for value in np.clip(16 + np.cumsum(moves), 0, MOST)]
    ),
).map(lambda past: np.array(past, dtype=np.float64))


class ForecasterSuite(DrawingSuite):
    """Inherit it as `TestMine` and say `registered_as = "mine"`, or write `make` for one with other knobs."""

    group = FORECASTERS
    examples = 25
    empty_stays: ClassVar[float] = 0.0  # forecast of a market that has always been empty

    def make(self, most: int | None = MOST) -> Forecaster:
        """A fresh one; `most` instances are all there can be."""
        forecaster: Forecaster = self.plugin()(most=most)
        return forecaster

    def test_a_forecaster_is_a_frozen_value_with_one_verb_and_a_sentence(self) -> None:
        kind = type(self.make())
        check_value(self.make(), verb="forecast")
        assert "most" in inspect.signature(kind).parameters, "how many there can be at all is given as `most`"
        assert self.make() == self.make()
        assert len({self.make(), self.make()}) == 1
        sentence = (inspect.getdoc(kind) or "").partition("\n")[0]
        assert sentence.endswith("."), "the first line of its docstring is what `sublet forecast` prints"
        assert len(sentence) <= LONGEST_SENTENCE

    def test_a_forecast_has_the_right_length_is_finite_and_within_what_there_can_be(self) -> None:
        def law(past: Floats, steps: int) -> None:
            ahead = self.make().forecast(past, steps)
            assert ahead.shape == (steps,)
            assert ahead.dtype == np.float64
            assert np.isfinite(ahead).all()
            assert (ahead >= 0.0).all(), "fewer instances than none"
            assert (ahead <= MOST).all(), "more instances than there can be"
            falls = np.maximum(-np.diff(np.concatenate([past[-1:], ahead])), 0.0)
            assert (falls <= np.concatenate([past[-1:], ahead[:-1]])).all(), "more are lost than there are"

        self.for_examples(law, pasts, st.integers(1, 20), most=max(40, self.examples))

    def test_a_forecast_never_looks_ahead_and_changes_nothing(self) -> None:
        def law(past: Floats, later: Floats, steps: int) -> None:
            whole = np.concatenate([past, later])
            other = np.concatenate([past, MOST - later])
            first = self.make().forecast(whole[: len(past)], steps)
            self.make().forecast(other, steps)  # what it may have learnt from another future is no use now
            again = self.make().forecast(other[: len(past)], steps)
            assert again.tolist() == first.tolist(), "the same past, another forecast"
            assert whole.tolist() == [*past.tolist(), *later.tolist()], "it wrote into the past"

        self.for_examples(law, pasts, pasts, st.integers(1, 14))

    def test_the_order_of_questions_does_not_matter(self) -> None:
        trace = load_trace("bamboo-p3").per_tick(60.0).astype(float)
        asked = (700, 400, 450, 451, 452, 500, 401, 682)
        forwards = {now: self.make().forecast(trace[:now], 12).tolist() for now in sorted(asked)}
        assert {now: self.make().forecast(trace[:now], 12).tolist() for now in asked} == forwards

    @pytest.mark.parametrize("length", [1, 2, 3, 12, 13, 400])
    @pytest.mark.parametrize("value", [8.0, 20.0, 32.0])
    def test_a_flat_past_stays(self, length: int, value: float) -> None:
        assert self.make().forecast(np.full(length, value), 12).tolist() == [value] * 12

    def test_an_empty_market_stays_empty_but_for_who_has_a_lower_bound(self) -> None:
        assert self.make().forecast(np.zeros(400), 12).tolist() == [self.empty_stays] * 12

    def test_a_past_above_the_bound_is_forecast_within_it(self) -> None:
        assert (self.make().forecast(np.array([30.0, 36.0, 40.0] * 20), 12) <= MOST).all()

    def test_no_past_no_future_and_a_past_with_a_hole_are_refused(self) -> None:
        for past, steps in ((np.zeros(0), 12), (np.ones(5), 0), (np.array([3.0, np.nan, 4.0]), 12)):
            with pytest.raises(InvalidValue):
                self.make().forecast(past, steps)
        with pytest.raises(InvalidValue, match="most"):
            self.make(most=-1)

    def test_a_forecast_is_quick_when_ticks_come_one_by_one(self) -> None:
        trace = np.tile(load_trace("bamboo-p3").per_tick(60.0).astype(float), 4)
        self.make().forecast(trace[:2000], 12)
        times_s = []
        for now in range(2001, 2031):
            start_s = perf_counter()
            self.make().forecast(trace[:now], 12)
            times_s.append(perf_counter() - start_s)
        assert sorted(times_s)[len(times_s) // 2] < SECONDS_AT_MOST

    def test_somebody_who_is_judged_knows_only_what_was_known(self) -> None:
        """The figures of a table up to a moment do not depend on what came after it."""
        calm, wild = [16, 14, 15, 18] * 20, [0, 32] * 6
        traces = [trace_from([*calm, *end]) for end in ([16] * 12, wild)]
        ahead = [self.make().forecast(trace.per_tick(60.0)[:80].astype(float), 12).tolist() for trace in traces]
        assert ahead[0] == ahead[1]
        assert [forecast_errors(t, {"it": self.make()}, moments=9)["it"].forecasts for t in traces] == [9, 9]


def trace_from(instances: list[int]) -> SpotTrace:
    """A trace of one zone, a value a minute."""
    steps = Steps(
        t_s=np.arange(len(instances), dtype=np.float64) * 60.0, value=np.array(instances, dtype=np.int64)
    ).compact()
    span_s = 60.0 * len(instances)
    return SpotTrace(name="made", series={"z": steps}, end_s={"z": span_s}, span_s=span_s, max_available=MOST)

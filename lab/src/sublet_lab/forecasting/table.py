"""Everyone's errors on a trace, side by side, and whether the default is as good as "what is there stays"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sublet import data
from sublet.domain.quantity import whole
from sublet.errors import MissingData, MissingExtra
from sublet.market.spot import SpotTrace
from sublet.market.traces import TRACES
from sublet_lab.forecasting.score import DEFAULT, PERSISTENCE, ForecastError, forecast_errors, forecasters_for

MOMENTS = 1000  # of a trace at which everyone forecasts; more take long and tell little more
MOMENTS_OF_MANY = 300  # of each of many traces


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorRow:
    """One trace: the error of every forecaster, and why one is left out."""

    trace: str
    horizon: int
    moments: int
    errors: Mapping[str, ForecastError]
    left_out: Mapping[str, str]

    @property
    def excess(self) -> float:
        """Instances by which the default errs more than persistence: the worst of one step, the last step and all."""
        ours, still = self.errors[DEFAULT], self.errors[PERSISTENCE]
        return max(ours.mean - still.mean, *(float(ours.per_step[h] - still.per_step[h]) for h in (0, -1)))

    @property
    def departs(self) -> bool:
        """Whether the default ever erred otherwise than persistence: else it was that, as its rule is, throughout."""
        return bool((self.errors[DEFAULT].per_step != self.errors[PERSISTENCE].per_step).any())

    @property
    def ok(self) -> bool:
        """Whether the default is nowhere worse than persistence."""
        return self.excess <= 0.0


def error_row(trace: SpotTrace, *, horizon: int = 12, moments: int = MOMENTS) -> ErrorRow:
    """Every forecaster at the same moments; one that needs something not installed is left out."""
    whole("moments", moments, 1)
    errors: dict[str, ForecastError] = {}
    left_out: dict[str, str] = {}
    for name, each in forecasters_for(trace).items():
        try:
            errors |= forecast_errors(trace, {name: each}, horizon=horizon, moments=moments)
        except MissingExtra as error:
            left_out[name] = str(error).replace("\n  next:", ":")
    forecasts = errors[PERSISTENCE].forecasts
    return ErrorRow(trace=trace.name, horizon=horizon, moments=forecasts, errors=errors, left_out=left_out)


def readable_traces(*, bundled_only: bool = False) -> Iterator[str]:
    """Names of the traces whose files are here."""
    for name, facts in TRACES.items():
        try:
            here = data.locate(facts.file).exists()
        except MissingData:
            here = False
        if here and (facts.bundled or not bundled_only):
            yield name

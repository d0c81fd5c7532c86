"""A forecaster of your own, beside a built-in one. Run with `python examples/recent_mean.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.domain.quantity import whole
from sublet.market.forecast import Persistence, asked_for, bounded
from sublet.market.traces import load_trace
from sublet.solve.arrays import Floats
from sublet_lab.forecasting.score import forecast_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentMean:
    """As many as there were on average of late."""

    most: int | None = None
    window: int = 10  # ticks

    def __post_init__(self) -> None:
        whole("most", 0 if self.most is None else self.most)
        whole("window", self.window, 1)

    def forecast(self, history: Floats, steps: int) -> Floats:
        """The mean of the last ticks, repeated."""
        asked_for(history, steps)
        return bounded(np.full(steps, history[-self.window :].mean()), self.most)


def main() -> None:
    """How many instances each is wrong by, on a recorded day of a spot market."""
    trace = load_trace("bamboo-p3")
    most = trace.max_available * len(trace.zones)
    for name, error in forecast_errors(
        trace, {"persistence": Persistence(most=most), "recent-mean": RecentMean(most=most)}
    ).items():
        print(f"{name:<12} {error.mean:5.2f} instances")


if __name__ == "__main__":
    main()

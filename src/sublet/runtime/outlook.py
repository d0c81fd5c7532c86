"""How long a job will still take and what it will cost, with how sure that is.

Drawn, not derived: speed varies as it has varied, nodes are lost as the offers say, every loss costs a pause. The draws
are the same for the same job at the same step, so that the figures do not flicker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sublet.runtime.views import Quantiles

__all__ = ["Outlook", "outlook"]

DRAWS = 400
SPEED_SPREAD = 0.08  # of the logarithm: how far the mean speed of the rest may be from what was measured so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Cloud seconds to the end, and dollars until then."""

    left_s: Quantiles
    left_usd: Quantiles


def outlook(
    *, share_left: float, rate: float, usd_per_h: float, losses_per_h: float, pause_s: float, seed: int
) -> Outlook | None:
    """`rate` is the share of the job done per cloud second; None where it makes no progress."""
    if rate <= 0 or not math.isfinite(rate):
        return None
    rng = np.random.default_rng(seed)
    trained_s = share_left / (rate * np.exp(rng.normal(0.0, SPEED_SPREAD, DRAWS)))
    lost = rng.poisson(losses_per_h * trained_s / 3600.0)
    left_s = trained_s + lost * pause_s
    return Outlook(left_s=_quantiles(left_s), left_usd=_quantiles(left_s * usd_per_h / 3600.0))


def _quantiles(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Quantiles:
    values.sort()
    p10, p50, p90 = (float(values[round(share * (len(values) - 1))]) for share in (0.1, 0.5, 0.9))
    return {"p10": p10, "p50": p50, "p90": p90}

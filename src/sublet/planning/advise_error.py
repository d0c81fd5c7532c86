"""How far predicted speeds are off, measured: every kind on which a model ran is predicted as if it had not.

The step times of that kind are left out and predicted from those of the other kinds, in the same way as for kinds on
which nobody ran the model. One thing was not left out: the two powers in `ratio_from_facts` were fitted to tables that
hold these rows among many others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from sublet.domain.offer import Gpu
from sublet.errors import MissingData
from sublet.perf.measured import MODELS
from sublet.planning.advise_profiles import MEASURED_ON_GBIT, Profile, sia_shelf
from sublet.planning.advise_speed import Machine, curve_for, step_s_on

__all__ = ["MEDIAN_ERROR", "KindError", "error_note", "left_out"]

MEDIAN_ERROR = 0.32  # of the 24 pairs of Sia's six models and four kinds; the tests measure it anew


@dataclass(frozen=True, slots=True, kw_only=True)
class KindError:
    """Medians over all measured steps: of |predicted / measured - 1|, and of predicted / measured."""

    kind: str
    error: float
    ratio: float
    rows: int


def left_out(profile: Profile, gpus: Mapping[str, Gpu]) -> list[KindError]:
    """For each kind of one of Sia's models; nothing for other models, which ran on one kind, or without its tables."""
    if profile.rates or profile.name not in MODELS or len(profile.curves) < 2:  # noqa: PLR2004 - one and another
        return []
    try:
        shelf = sia_shelf((profile.name,))
    except MissingData:
        return []
    found = []
    for kind in profile.curves:
        measured = shelf[profile.name, kind]
        others = replace(profile, curves={name: curve for name, curve in profile.curves.items() if name != kind})
        machine = Machine(kind, 1, MEASURED_ON_GBIT[kind])
        curve, _, _ = curve_for(others, machine, gpus)
        if curve is not None:
            told_s = step_s_on(curve, measured.confs, machine, gpus.get(kind))
            ratio_R = told_s / measured.step_s
            error = float(np.median(np.abs(ratio_R - 1.0)))
            found.append(KindError(kind=kind, error=error, ratio=float(np.median(ratio_R)), rows=len(ratio_R)))
    return found


def error_note(profile: Profile, errors: Sequence[KindError]) -> str:
    """What to make of a predicted speed."""
    usual = f"{100 * MEDIAN_ERROR:.0f} %"
    if not errors:
        return (
            f"predicted speeds: step times of {profile.name} are here for one kind only, so its error is not known; "
            f"six models on four kinds, each kind predicted from the other three, are off by {usual} in the median"
        )
    each = ", ".join(
        f"{found.kind} {100 * found.error:.0f} % too {'slow' if found.ratio > 1 else 'fast'}" for found in errors
    )
    return (
        f"predicted speeds: where {profile.name} was measured, the step time of each kind predicted from the others is "
        f"off by {100 * median(found.error for found in errors):.0f} % in the median ({each}; six models: {usual})"
    )

"""How far predicted speeds are off, measured: every kind on which a model ran is predicted as if it had not.

The step times of the model on that kind are left out and predicted from those on other kinds, by the very code that
predicts unmeasured kinds. Measurements of other models on the kind may help, or be left out as well; most kinds on sale
are of the second sort. One thing was not left out: the two powers in `ratio_from_facts` were fitted to tables that hold
these rows among many others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from sublet.advise.measured_models import known_shelf, shelf_name, sia_shelf
from sublet.advise.profiles import MEASURED_ON_GBIT, Profile
from sublet.advise.speed import Machine, pace_on
from sublet.advise.transfer import Transfer
from sublet.domain.offer import Gpu
from sublet.errors import MissingData
from sublet.perf.measured import MODELS

# Medians over 45 pairs of a model and a kind (Sia, Gavel), measured anew by the tests and by `sublet study deepvm`.
ERROR_AS_OTHERS = 0.23  # other models ran on the kind
ERROR_BY_FACTS = 0.29  # none did


@dataclass(frozen=True, slots=True, kw_only=True)
class KindError:
    """Medians over all measured steps: of |predicted / measured - 1|, and of predicted / measured."""

    kind: str
    error: float
    ratio: float
    rows: int


def without_kind(profile: Profile, kind: str) -> Profile:
    """As if the model had not been run there."""
    return replace(profile, curves={name: curve for name, curve in profile.curves.items() if name != kind})


def left_out(profile: Profile, gpus: Mapping[str, Gpu], *, others: bool = False) -> list[KindError]:
    """For each kind of one of Sia's models; nothing for other models, which ran on one kind, or without its tables.

    With `others`, what other models did on the kind is known.
    """
    if profile.rates or profile.name not in MODELS or len(profile.curves) < 2:  # noqa: PLR2004 - one and another
        return []
    try:
        measured = sia_shelf((profile.name,))
    except MissingData:
        return []
    found = []
    for kind in profile.curves:
        shelf = {key: each for key, each in known_shelf().items() if others or key[1] != shelf_name(kind)}
        machine = Machine(kind, 1, MEASURED_ON_GBIT[kind])
        pace = pace_on(without_kind(profile, kind), machine, gpus, Transfer(shelf, gpus))
        if pace is not None:
            confs, step_s, _ = measured[profile.name, kind]
            ratio_R = pace.step_s(confs) / step_s
            error = float(np.median(np.abs(ratio_R - 1.0)))
            found.append(KindError(kind=kind, error=error, ratio=float(np.median(ratio_R)), rows=len(ratio_R)))
    return found


def error_note(profile: Profile, errors: Sequence[KindError]) -> str:
    """A note on the trust in a predicted speed."""
    usual = (
        f"{100 * ERROR_BY_FACTS:.0f} % where no other model ran on the kind, {100 * ERROR_AS_OTHERS:.0f} % where some "
        "did (45 pairs of model and kind, sublet study deepvm)"
    )
    if not errors:
        return (
            f"predicted speeds: step times of {profile.name} are here for one kind only, so its error is not known; "
            f"the median error of step times predicted for other models is {usual}"
        )
    each = ", ".join(
        f"{found.kind} {100 * found.error:.0f} % too {'slow' if found.ratio > 1 else 'fast'}" for found in errors
    )
    return (
        f"predicted speeds: where {profile.name} was measured, the step time of each kind predicted from the others is "
        f"off by {100 * median(found.error for found in errors):.0f} % in the median ({each}); of all models {usual}"
    )

"""Why a class of jobs gets its shape: what an hour would cost on the next faster one, and what an hour is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sublet.rental.shapes import RentalShape
from sublet.solve.curves import Curve

__all__ = ["reason_for"]

SAME = 1e-7  # prices nearer than this, relatively, are one price


def reason_for(
    shapes: Sequence[RentalShape],
    shares: Sequence[float],
    worth_usd_per_h: float,
    rent_usd: Sequence[float],
    *,
    scarce: bool = False,
) -> str:
    """One sentence. `rent_usd` is what each shape costs a job, the price of a `scarce` kind included."""
    chosen = [shape for shape, share in zip(shapes, shares, strict=True) if share > 0]
    if math.isinf(worth_usd_per_h):
        limit = "within the quota" if scarce else "that can be had"
        return f"{_several(chosen)}: the fastest {limit}, as money does not run short"
    curve = Curve.from_table([shape.hours for shape in shapes], rent_usd)
    line = [shapes[config] for config in curve.config]
    cheaper = int(np.searchsorted(curve.price, worth_usd_per_h * (1 - SAME))) - 1
    dearer = int(np.searchsorted(curve.price, worth_usd_per_h * (1 + SAME)))
    if len(chosen) > 1:
        worth = f"what an hour is worth, {_usd(worth_usd_per_h)}"
        return f"{_several(chosen)} are equally good, as the step costs just {worth}, per hour saved"
    facts = []
    if dearer < len(line):
        facts.append(f"{_step(line[dearer - 1], line[dearer])} would cost {_usd(curve.price[dearer])} per hour saved")
    elif len(line) > 1:
        facts.append("nothing on offer is faster")
    if cheaper > 0:
        facts.append(f"{_step(line[cheaper - 1], line[cheaper])} cost {_usd(curve.price[cheaper])}")
    if len(line) == 1:
        return f"{chosen[0]}: the cheapest and the fastest in one"
    return f"{_short(chosen[0])}: {', '.join(facts)}, time is worth {_usd(worth_usd_per_h)}"


def _step(before: RentalShape, after: RentalShape) -> str:
    """The addition, where it can be said; else the replacement."""
    if before.offer != after.offer or after.gpus <= before.gpus:
        return f"{after} instead of {before}"
    if after.gpus == before.gpus + 1:
        return f"the {_nth(after.gpus)}"
    return f"the {_nth(before.gpus + 1)} to {_nth(after.gpus)}"


def _short(shape: RentalShape) -> str:
    return f"{shape.gpus} GPU{'' if shape.gpus == 1 else 's'}"


def _several(shapes: Sequence[RentalShape]) -> str:
    return " and ".join(map(str, shapes))


def _nth(number: int) -> str:
    teens = number % 100 in {11, 12, 13}
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _usd(amount: float) -> str:
    return f"USD {amount:,.2f}" if amount >= 0.1 else f"USD {amount:.2g}"  # noqa: PLR2004 - two figures that count

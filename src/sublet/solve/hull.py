"""The configurations worth having: per class, the lower-left convex hull of (time, cost) per unit of work.

A configuration off the hull is never best, whatever time is worth: another one, or a mixture of two others, is as fast
for less money. Along the hull, from the cheapest configuration to the fastest, time gets dearer with every step.

>>> hulls = lower_left(np.array([[4.0, 3.0, 2.0, 2.5]]), np.array([[1.0, 3.0, 3.0, 9.0]]))
>>> hulls.config_V.tolist(), hulls.price_V.tolist()  # the second is beaten by a mixture, the last by the third
([0, 2], [-inf, 1.0])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Floats, Ints

__all__ = ["Hulls", "lower_left"]


# I classes, C configurations of each (padded), V vertices of all hulls: those of class i are start[i] to start[i + 1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Hulls:
    """Vertices by class, each class from its cheapest to its fastest: time falls, cost and price rise."""

    start: Ints
    config_V: Ints  # which column of the table
    time_V: Floats
    cost_V: Floats
    price_V: Floats  # money per unit of time saved by the step that ends here; -inf where a class begins

    def __repr__(self) -> str:
        return f"Hulls(classes={len(self)}, vertices={len(self.config_V)})"

    def __len__(self) -> int:
        return len(self.start) - 1

    def of(self, index: int) -> slice:
        """The slice of the vertices of a class."""
        return slice(int(self.start[index]), int(self.start[index + 1]))


def lower_left(time_IC: npt.ArrayLike, cost_IC: npt.ArrayLike) -> Hulls:
    """The hull of every row. An entry whose time or cost is infinite or NaN cannot run and is passed over.

    Precondition: both tables have the same two axes, no entry is negative, and each row has an entry that can run (else
    `Infeasible` names the row). Of equal entries the first is taken; points on a straight line are left out.

    Cost: O(I C log C), or O(I C) where costs already rise along the rows. To that comes one pass over the rows that
    still have a dent, for as long as there are any: one pass for convex tables, about log C passes for random ones, C
    at worst.
    """
    time_IC, cost_IC = _tables(time_IC, cost_IC)
    runs_IC = np.isfinite(time_IC) & np.isfinite(cost_IC)
    if not runs_IC.all():
        stuck_I = ~runs_IC.any(axis=1)
        if stuck_I.any():
            raise Infeasible(
                f"class {int(np.argmax(stuck_I))} cannot run at all",
                binding="configurations with finite time and cost",
                needed=1,
                available=0,
                hint="give it a configuration that it can run on, or leave it out",
            )
        time_IC, cost_IC = np.where(runs_IC, time_IC, np.inf), np.where(runs_IC, cost_IC, np.inf)
    config_V, class_V, time_V, cost_V = _drop_dominated(time_IC, cost_IC)
    kept_V = _convex(class_V, time_V, cost_V, len(time_IC))
    if len(kept_V) < len(config_V):
        config_V, class_V, time_V, cost_V = config_V[kept_V], class_V[kept_V], time_V[kept_V], cost_V[kept_V]
    start = np.zeros(len(time_IC) + 1, dtype=np.intp)
    np.cumsum(np.bincount(class_V, minlength=len(time_IC)), out=start[1:])
    price_V = np.empty(len(class_V))
    price_V[1:] = _slopes(time_V, cost_V)
    price_V[start[:-1]] = -np.inf
    return Hulls(start=start, config_V=config_V, time_V=time_V, cost_V=cost_V, price_V=price_V)


def _tables(time_IC: npt.ArrayLike, cost_IC: npt.ArrayLike) -> tuple[Floats, Floats]:
    time_IC, cost_IC = np.asarray(time_IC, dtype=np.float64), np.asarray(cost_IC, dtype=np.float64)
    if time_IC.ndim != 2 or time_IC.size == 0:  # noqa: PLR2004 - classes by configurations
        raise InvalidValue("time_IC", time_IC.shape, "a table of classes by configurations, neither of them none")
    if cost_IC.shape != time_IC.shape:
        raise InvalidValue("cost_IC", cost_IC.shape, f"of the same shape as time_IC, {time_IC.shape}")
    for name, table_IC in (("time_IC", time_IC), ("cost_IC", cost_IC)):
        if np.fmin.reduce(table_IC, axis=None) < 0:
            index, config = (int(at) for at in np.argwhere(table_IC < 0)[0])
            raise InvalidValue(f"{name}[{index}, {config}]", float(table_IC[index, config]), "0 or more, inf or NaN")
    return time_IC, cost_IC


def _drop_dominated(time_IC: Floats, cost_IC: Floats) -> tuple[Ints, Ints, Floats, Floats]:
    """Configuration, class, time and cost of what is faster than everything cheaper, in order of cost per class."""
    width = time_IC.shape[1]
    order_IC = None
    if not (cost_IC[:, 1:] >= cost_IC[:, :-1]).all():
        order_IC = np.argsort(cost_IC, axis=1, kind="stable")
        time_IC, cost_IC = np.take_along_axis(time_IC, order_IC, 1), np.take_along_axis(cost_IC, order_IC, 1)
    faster_IC = np.ones(time_IC.shape, dtype=np.bool_)
    np.less(time_IC[:, 1:], np.minimum.accumulate(time_IC, axis=1)[:, :-1], out=faster_IC[:, 1:])
    at_V = np.flatnonzero(faster_IC)
    class_V = np.repeat(np.arange(len(time_IC)), np.count_nonzero(faster_IC, axis=1))
    config_V = at_V - class_V * width if order_IC is None else order_IC.ravel()[at_V]
    return config_V, class_V, time_IC.ravel()[at_V], cost_IC.ravel()[at_V]


def _convex(class_V: Ints, time_V: Floats, cost_V: Floats, classes: int) -> Ints:
    """Which points to keep so that prices rise strictly.

    A point on or above the line between its two neighbours is no vertex, and leaving it out changes no hull. So all
    such points go at once, and only classes that lost some are looked at again.
    """
    kept_V = np.ones(len(class_V), dtype=np.bool_)
    live: Ints | None = None  # None: all of them
    while True:
        k, z, y = (class_V, time_V, cost_V) if live is None else (class_V[live], time_V[live], cost_V[live])
        joined = k[1:] == k[:-1]
        price = _slopes(z, y)
        into = np.zeros(len(k))  # 0 where a class begins: a first step that costs nothing is no choice
        into[1:] = np.where(joined, price, 0.0)
        dent = np.flatnonzero((into[:-1] >= price) & joined)
        if not len(dent):
            return np.flatnonzero(kept_V)
        kept_V[dent if live is None else live[dent]] = False
        again_I = np.zeros(classes, dtype=np.bool_)
        again_I[k[dent]] = True
        stays = again_I[k]
        stays[dent] = False
        live = np.flatnonzero(stays) if live is None else live[stays]


def _slopes(time_V: Floats, cost_V: Floats) -> Floats:
    """Money per unit of time saved from each point to the next; without meaning where the next is of another class."""
    with np.errstate(all="ignore"):
        return (cost_V[1:] - cost_V[:-1]) / (time_V[:-1] - time_V[1:])

"""Many curves, prepared: every step of every hull, in the order in which a growing budget buys them.

How much work arrives decides how far a budget reaches, never in which order it buys. So the sort is done here, once;
new arrival rates, and any budget, cost no sort.

>>> curves = Curves.from_tables([[1.0, 0.5], [1.0, 0.4]], [[1.0, 2.0], [1.0, 1.9]])  # two classes, two configurations
>>> curves.price_S.tolist(), curves.class_S.tolist()  # 1.5 and 2.0 per unit of time saved
([1.5, 2.0], [1, 0])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Floats, Ints

# I classes, C configurations, V vertices of all hulls, S steps of all hulls (S = V - I)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One class: its hull, from the cheapest configuration to the fastest."""

    config: Ints
    time: Floats
    cost: Floats
    price: Floats  # of a weighted unit of time, at the step to each vertex; -inf at the first
    weight: float

    @classmethod
    def from_table(cls, time_C: npt.ArrayLike, cost_C: npt.ArrayLike, weight: float = 1.0) -> Curve:
        """From the time and cost per unit of work of each configuration; see `lower_left`."""
        hulls = lower_left(np.atleast_2d(np.asarray(time_C)), np.atleast_2d(np.asarray(cost_C)))
        return cls.from_hull(hulls, slice(None), _weights(weight, 1)[0].item())

    @classmethod
    def from_hull(cls, hulls: Hulls, of: slice, weight: float) -> Curve:
        """A stretch of hulls that are already known."""
        return cls(
            config=hulls.config_V[of],
            time=hulls.time_V[of],
            cost=hulls.cost_V[of],
            price=hulls.price_V[of] / weight,
            weight=weight,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Curves:
    """Hulls and weights of all classes, and their steps sorted by price. Make them with `from_tables`."""

    hulls: Hulls
    weight_I: Floats
    price_V: Floats  # of a weighted unit of time: what the hull says, divided by the weight
    price_S: Floats  # rising
    class_S: Ints
    cost_S: Floats  # cost added per unit of work
    time_S: Floats  # weighted time saved per unit of work

    def __repr__(self) -> str:
        return f"Curves(classes={len(self)}, steps={len(self.price_S)})"

    def __len__(self) -> int:
        return len(self.hulls)

    @classmethod
    def from_tables(
        cls, time_IC: npt.ArrayLike, cost_IC: npt.ArrayLike, weight_I: npt.ArrayLike | None = None
    ) -> Curves:
        """From the time and the cost per unit of work, by class and configuration; pad rows with inf.

        Precondition: as for `lower_left`; weights, 1 unless given, are positive and finite.
        Cost: `lower_left`, and one sort of the S <= I (C - 1) steps.
        """
        hulls = lower_left(time_IC, cost_IC)
        return cls.from_hulls(hulls, _weights(1.0 if weight_I is None else weight_I, len(hulls)))

    @classmethod
    def from_hulls(cls, hulls: Hulls, weight_I: Floats) -> Curves:
        """From hulls that are already known: the sort alone."""
        count_I = np.diff(hulls.start)
        class_V = np.repeat(np.arange(len(hulls)), count_I)
        price_V, worth_V = hulls.price_V, np.ones(1)
        if (weight_I != 1.0).any():
            worth_V = weight_I[class_V]
            price_V = price_V / worth_V
        at_S = np.argsort(price_V)[len(hulls) :]  # the first I are where classes begin
        time_S = (hulls.time_V[:-1] - hulls.time_V[1:])[at_S - 1]
        return cls(
            hulls=hulls,
            weight_I=weight_I,
            price_V=price_V,
            price_S=price_V[at_S],
            class_S=class_V[at_S],
            cost_S=(hulls.cost_V[1:] - hulls.cost_V[:-1])[at_S - 1],
            time_S=time_S if len(worth_V) == 1 else time_S * worth_V[at_S],
        )

    def curve(self, index: int) -> Curve:
        """One class."""
        return Curve.from_hull(self.hulls, self.hulls.of(index), self.weight_I[index].item())

    def configs(self, value_of_time: float, *, richer: bool) -> Ints:
        """The choice of each class when a unit of time is worth this much; `richer` decides where two are equally good.

        Cost: O(V), without arithmetic.
        """
        bought_V = self.price_V <= value_of_time if richer else self.price_V < value_of_time
        last_V = bought_V.copy()
        last_V[:-1] &= ~(bought_V[1:] & (self.price_V[1:] > -np.inf))
        return self.hulls.config_V[last_V]


def alike(time_IC: npt.ArrayLike, cost_IC: npt.ArrayLike, weight_I: npt.ArrayLike | None = None) -> tuple[Ints, Ints]:
    """Classes with the same table and weight are one class with their work added up: (one index per group, group_I).

    Cost: O(I C); entries are compared bit by bit.

    >>> first_G, group_I = alike([[2.0, 1.0], [3.0, 1.0], [2.0, 1.0]], [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    >>> first_G.tolist(), group_I.tolist(), np.bincount(group_I, weights=[0.5, 0.5, 0.25]).tolist()
    ([0, 1], [0, 1, 0], [0.75, 0.5])
    """
    time_IC, cost_IC = np.asarray(time_IC, dtype=np.float64), np.asarray(cost_IC, dtype=np.float64)
    weights = _weights(1.0 if weight_I is None else weight_I, len(time_IC))
    bits_IB = np.concatenate((time_IC, cost_IC, weights[:, None]), axis=1).view(np.uint64)
    mixed_IB = bits_IB ^ (bits_IB >> np.uint64(32))  # round numbers differ in their high bits only
    factor_B = np.arange(1, bits_IB.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
    first_G, group_I = np.unique(mixed_IB @ factor_B, return_index=True, return_inverse=True)[1:]
    if not np.array_equal(bits_IB[first_G][group_I], bits_IB):  # two tables with one fingerprint
        first_G, group_I = np.unique(bits_IB, axis=0, return_index=True, return_inverse=True)[1:]
    rank_G = np.empty(len(first_G), dtype=np.intp)
    rank_G[np.argsort(first_G)] = np.arange(len(first_G))
    return np.sort(first_G), rank_G[group_I.ravel()]


def _weights(given: npt.ArrayLike, classes: int) -> Floats:
    given = np.asarray(given, dtype=np.float64)
    if given.ndim and given.shape != (classes,):
        raise InvalidValue("weight_I", given.shape, f"one per class, {classes}")
    weight_I: Floats = np.full(classes, 1.0) * given
    wrong = np.flatnonzero(~((weight_I > 0) & np.isfinite(weight_I)))
    if len(wrong):
        raise InvalidValue(f"weight_I[{wrong[0]}]", weight_I[wrong[0]].item(), "positive and finite")
    return weight_I


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
    """The lower-left convex hull of (time, cost) of every row, from the cheapest configuration to the fastest.

    One off the hull is never best, whatever time is worth: another, or a mixture of two, is as fast for less. An entry
    whose time or cost is infinite or NaN cannot run and is passed over.

    Precondition: both tables have the same two axes, no entry is negative, and each row has an entry that can run (else
    `Infeasible` names the row). Of equal entries the first is taken; points on a straight line are left out.

    >>> hulls = lower_left(np.array([[4.0, 3.0, 2.0, 2.5]]), np.array([[1.0, 3.0, 3.0, 9.0]]))
    >>> hulls.config_V.tolist(), hulls.price_V.tolist()  # the second is beaten by a mixture, the last by the third
    ([0, 2], [-inf, 1.0])

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

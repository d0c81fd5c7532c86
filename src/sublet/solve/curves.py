"""Many curves, prepared: every step of every hull, in the order in which a growing budget buys them.

How much work arrives decides how far a budget reaches, never in which order it buys. So the sort is done here, once;
new arrival rates, and any budget, cost no sort.

>>> curves = Curves.from_tables([[1.0, 0.5], [1.0, 0.4]], [[1.0, 2.0], [1.0, 1.9]])  # two classes, two configurations
>>> curves.price_S.tolist(), curves.class_S.tolist()  # 1.5 and 2.0 per unit of time saved
([1.5, 2.0], [1, 0])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats, Ints
from sublet.solve.hull import Hulls, lower_left

__all__ = ["Curve", "Curves", "alike"]

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

    def weighing(self, weight: float) -> Curve:
        """The same with another weight."""
        price = self.price * (self.weight / _weights(weight, 1)[0])
        return Curve(config=self.config, time=self.time, cost=self.cost, price=price, weight=weight)


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

    def with_curves(self, changed: Mapping[int, Curve]) -> Curves:
        """The same with some classes replaced. Cost: O(V log V)."""
        if not changed:
            return self
        pieces: list[Curve] = []
        hulls, weight_I, begin = self.hulls, self.weight_I.copy(), 0
        count_I = np.diff(hulls.start)
        for index in sorted(changed):
            pieces += [Curve.from_hull(hulls, slice(begin, int(hulls.start[index])), 1.0), changed[index].weighing(1.0)]
            weight_I[index], count_I[index] = changed[index].weight, len(changed[index].config)
            begin = int(hulls.start[index + 1])
        pieces.append(Curve.from_hull(hulls, slice(begin, None), 1.0))
        merged = Hulls(
            start=np.concatenate(([0], np.cumsum(count_I))),
            config_V=np.concatenate([piece.config for piece in pieces]),
            time_V=np.concatenate([piece.time for piece in pieces]),
            cost_V=np.concatenate([piece.cost for piece in pieces]),
            price_V=np.concatenate([piece.price for piece in pieces]),
        )
        return Curves.from_hulls(merged, weight_I)


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

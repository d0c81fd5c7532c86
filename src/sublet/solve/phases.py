"""One job in several phases, where changing the configuration costs time: the best plan at a given value of time.

Early phases of a training job may not scale and late ones may, so the best configuration changes on the way; each
change is a restart that is waited for and paid for. At a fixed value of time v the plan is a shortest path:

    best(phase, c) = (v + rent of c) x time(phase, c)
                   + the least of  best(phase before, c)                                 stay
                              and  least of best(phase before, .) + (v + rent of c) x restart   move to c

>>> jobs = Phases.from_tables([[[8.0, 9.0], [8.0, 1.0]]], [[1.0, 4.0]], restart=0.5)  # one class, two phases
>>> best_plans(jobs, 2.0).config_IE.tolist(), best_plans(jobs, 0.1).config_IE.tolist()
([[0, 1]], [[0, 1]])
>>> best_plans(jobs.after([1.5], current=[0]), 2.0).time_I.tolist()  # half of the last phase is left
[1.0]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Bools, Floats, Ints

# I classes, E phases, C configurations; classes come last inside, so that the inner loops run over many of them
NOT_STARTED = -1
Pay = npt.NDArray[np.inexact]  # complex where a second number decides between equals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Phases:
    """Classes of jobs with the same number of phases and configurations. Make them with `from_tables`."""

    time_ECI: Floats  # 0 where it cannot run
    stuck_ECI: Bools | None  # where it cannot run, if anywhere
    rent_CI: Floats
    restart_CI: Floats
    start_CI: Floats
    current_I: Ints
    weight_I: Floats

    def __repr__(self) -> str:
        phases, configs, classes = self.time_ECI.shape
        return f"Phases(classes={classes}, phases={phases}, configs={configs})"

    def __len__(self) -> int:
        return len(self.weight_I)

    @classmethod
    def from_tables(
        cls,
        time_IEC: npt.ArrayLike,
        rent_IC: npt.ArrayLike,
        *,
        restart: npt.ArrayLike = 0.0,
        start: npt.ArrayLike = 0.0,
        current: npt.ArrayLike = NOT_STARTED,
        weight: npt.ArrayLike = 1.0,
    ) -> Phases:
        """From the time that each phase takes on each configuration, and the rent of each per unit of time.

        Infinite or NaN time: cannot run there. `restart` and `start` (the first start, which is paid for too) are
        times: one for all, one per class, or one per class and configuration; an infinite restart forbids changes.
        `current` is what a job runs on now, so that it pays no first start. Classes with fewer phases are `padded`.
        """
        time_IEC = np.asarray(time_IEC, dtype=np.float64)
        if time_IEC.ndim != 3 or time_IEC.size == 0:  # noqa: PLR2004 - classes, phases, configurations
            raise InvalidValue("time_IEC", time_IEC.shape, "a table of classes, phases and configurations")
        classes, _, configs = time_IEC.shape
        shape = (classes, configs)
        current_I = np.broadcast_to(np.array(current, dtype=np.intp), classes)
        if ((current_I < NOT_STARTED) | (current_I >= configs)).any():
            raise InvalidValue("current", current, f"a configuration, 0 to {configs - 1}, or {NOT_STARTED}")
        weight_I = np.broadcast_to(np.array(weight, dtype=np.float64), classes)
        if not ((weight_I > 0) & np.isfinite(weight_I)).all():
            raise InvalidValue("weight", weight, "positive and finite")
        if np.fmin.reduce(time_IEC, axis=None) < 0:
            raise InvalidValue("time_IEC", float(np.nanmin(time_IEC)), "0 or more, inf or NaN")
        runs_ECI = np.isfinite(time_IEC).transpose(1, 2, 0)
        return cls(
            time_ECI=np.where(runs_ECI, time_IEC.transpose(1, 2, 0), 0.0),
            stuck_ECI=None if runs_ECI.all() else np.ascontiguousarray(~runs_ECI),
            rent_CI=_amounts("rent_IC", rent_IC, shape, most=np.finfo(np.float64).max),
            restart_CI=_amounts("restart", restart, shape, most=np.inf),
            start_CI=_amounts("start", start, shape, most=np.finfo(np.float64).max),
            current_I=current_I,
            weight_I=weight_I,
        )

    def after(self, done_I: npt.ArrayLike, *, current: npt.ArrayLike) -> Phases:
        """The work that is left of jobs that have come so far: 2.25 is a quarter into the third phase."""
        done_I = np.asarray(done_I, dtype=np.float64)
        if done_I.shape != (len(self),) or not (done_I >= 0).all():
            raise InvalidValue("done_I", done_I, f"phases done, 0 or more, one number for each of {len(self)} classes")
        phases, configs, classes = self.time_ECI.shape
        left_E1I = np.clip(np.arange(1, phases + 1)[:, None, None] - done_I, 0.0, 1.0)
        current_I = np.broadcast_to(np.array(current, dtype=np.intp), classes)
        if ((current_I < NOT_STARTED) | (current_I >= configs)).any():
            raise InvalidValue("current", current, f"a configuration, 0 to {configs - 1}, or {NOT_STARTED}")
        stuck_ECI = None if self.stuck_ECI is None else self.stuck_ECI & (left_E1I > 0)
        return replace(self, time_ECI=self.time_ECI * left_E1I, stuck_ECI=stuck_ECI, current_I=current_I)

    def take(self, index_N: Ints) -> Phases:
        """Some of the classes, or the same ones several times."""
        return Phases(
            time_ECI=self.time_ECI[:, :, index_N],
            stuck_ECI=None if self.stuck_ECI is None else self.stuck_ECI[:, :, index_N],
            rent_CI=self.rent_CI[:, index_N],
            restart_CI=self.restart_CI[:, index_N],
            start_CI=self.start_CI[:, index_N],
            current_I=self.current_I[index_N],
            weight_I=self.weight_I[index_N],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plans:
    """A configuration per class and phase, and the time and money per job that follow."""

    config_IE: Ints
    time_I: Floats
    cost_I: Floats


def best_plans(phases: Phases, value_of_time: npt.ArrayLike) -> Plans:
    """The plan of each class that minimises weight x value of time x time + money, per job.

    At 0 it is the cheapest, and of these the fastest; at infinity the fastest, and of these the cheapest. One value for
    all, or one per class (finite, and without that care for equals). Cost: O(I E C), with a Python loop over phases.
    """
    value = np.asarray(value_of_time, dtype=np.float64)
    if not (value >= 0).all() or (value.ndim and np.isinf(value).any()):
        raise InvalidValue("value_of_time", value_of_time, "0 or more")
    pay_CI: Pay
    if value.ndim == 0 and value == 0:
        pay_CI = phases.rent_CI + 1j * phases.weight_I  # complex numbers compare by their real part, then the other
    elif np.isinf(value).any():
        pay_CI = 1.0 + 1j * phases.rent_CI
    else:
        pay_CI = phases.rent_CI + phases.weight_I * value
    return _totals(phases, _shortest_paths(phases, pay_CI))


def _shortest_paths(phases: Phases, pay_CI: Pay) -> Ints:
    """config_EI: forward over the phases with the value of being on each configuration, then back along the choices."""
    count, configs, classes = phases.time_ECI.shape
    class_I = np.arange(classes)
    stay_ECI = np.empty(phases.time_ECI.shape, dtype=np.bool_)
    best_EI = np.empty((count, classes), dtype=np.intp)
    move_CI = _delay(pay_CI, phases.restart_CI)
    running_CI = np.arange(configs)[:, None] == phases.current_I
    value_CI = np.where(phases.current_I >= 0, np.where(running_CI, 0.0, move_CI), pay_CI * phases.start_CI)
    for phase in range(count):
        if phase:
            best_EI[phase] = value_CI.argmin(axis=0)
            moved_CI = move_CI + value_CI[best_EI[phase], class_I]
            np.less_equal(value_CI, moved_CI, out=stay_ECI[phase])
            value_CI = np.where(stay_ECI[phase], value_CI, moved_CI)
        value_CI = value_CI + pay_CI * phases.time_ECI[phase]
        if phases.stuck_ECI is not None:
            value_CI[phases.stuck_ECI[phase]] = np.inf
    config_EI = np.empty((count, classes), dtype=np.intp)
    config_I = config_EI[-1] = value_CI.argmin(axis=0)
    _all_can_run(value_CI[config_I, class_I].real)
    for phase in range(count - 1, 0, -1):
        config_I = np.where(stay_ECI[phase, config_I, class_I], config_I, best_EI[phase])
        config_EI[phase - 1] = config_I
    return config_EI


def _totals(phases: Phases, config_EI: Ints) -> Plans:
    """Time and money along the plans."""
    class_I = np.arange(len(phases))
    time_EI = phases.time_ECI[np.arange(len(config_EI))[:, None], config_EI, class_I]
    restart_EI = phases.restart_CI[config_EI, class_I]
    running_I = phases.current_I >= 0
    time_EI[1:] += np.where(config_EI[1:] != config_EI[:-1], restart_EI[1:], 0.0)
    moved_I = np.where(config_EI[0] != phases.current_I, restart_EI[0], 0.0)
    time_EI[0] += np.where(running_I, moved_I, phases.start_CI[config_EI[0], class_I])
    cost_EI = time_EI * phases.rent_CI[config_EI, class_I]
    return Plans(config_IE=config_EI.T, time_I=time_EI.sum(axis=0), cost_I=cost_EI.sum(axis=0))


def _delay(pay_CI: Pay, time_CI: Floats) -> Pay:
    never_CI = np.isinf(time_CI)
    return np.where(never_CI, np.inf, pay_CI * np.where(never_CI, 0.0, time_CI))


def _all_can_run(value_I: Floats) -> None:
    stuck = np.flatnonzero(np.isinf(value_I))
    if len(stuck):
        raise Infeasible(
            f"class {stuck[0]} cannot run through all its phases",
            binding="ways through the phases",
            needed=1,
            available=0,
            hint="give each phase a configuration that can run it and that can be changed to",
        )


def _amounts(name: str, given: npt.ArrayLike, shape: tuple[int, int], *, most: float) -> Floats:
    """One for all, one per class, or one per class and configuration, as configurations by classes."""
    array = np.asarray(given, dtype=np.float64)
    if not ((array >= 0) & (array <= most)).all():
        raise InvalidValue(name, given, "0 or more" if np.isinf(most) else "0 or more, and finite")
    try:
        array_IC = np.broadcast_to(array[:, None] if array.ndim == 1 else array, shape)
    except ValueError:
        raise InvalidValue(name, array.shape, f"one for all, one per class or of shape {shape}") from None
    return np.array(array_IC.T, order="C")

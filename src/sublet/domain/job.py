"""A training job: how much work, how fast it goes, what its owner asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sublet.domain.quantity import at_least, named, positive, whole
from sublet.domain.shape import Shape, Spread
from sublet.errors import InvalidValue


class Speed(Protocol):
    """How fast a job goes on GPUs of kind `gpu`, `spread` over nodes: (4, 4, 2) is ten GPUs on three nodes.

    Work is in the model's own unit (samples, iterations, seconds on one GPU); `done` is how much of it is behind us,
    because late phases of training often scale better than early ones. A shape that cannot run has rate 0.
    """

    @property
    def ends(self) -> tuple[float, ...]:
        """The progress at which each phase ends, the last included; empty if the rate never changes."""
        ...

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        """Work per second at progress `done`."""
        ...

    def seconds(self, gpu: str, spread: Spread, done: float, goal: float) -> float:
        """Time to get from `done` to `goal`; infinite where the rate is 0."""
        ...

    def work(self, gpu: str, spread: Spread, done: float, seconds: float) -> float:
        """Progress reached after `seconds` from `done`; the inverse of `seconds`."""
        ...


class Standstill:
    """The speed of a job that cannot train."""

    ends: tuple[float, ...] = ()

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        """None."""
        del gpu, spread, done
        return 0.0

    def seconds(self, gpu: str, spread: Spread, done: float, goal: float) -> float:
        """Never."""
        del gpu, spread, done, goal
        return math.inf

    def work(self, gpu: str, spread: Spread, done: float, seconds: float) -> float:
        """As far as before."""
        del gpu, spread, seconds
        return done


_STANDSTILL = Standstill()


@runtime_checkable
class Doubted(Protocol):
    """A speed that was measured or guessed, and says how far off it may be. One that does not say is known."""

    def doubt(self, gpu: str, spread: Spread) -> float:
        """The standard error of the rate, as a part of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From one shape to another, of all that happened to a job at one instant."""

    was: Shape | None  # None = it starts, from storage or from nothing
    now: Shape
    lost: int = 0  # of the GPUs of `was`: the cloud took them, or told that it will, and they were left
    left_s: float = 0.0  # of the pause before, which this one cut short
    ready_s: float = 0.0  # for so long it has been prepared while training went on: a loss that was announced

    @property
    def is_of_spares(self) -> bool:
        """Whether training workers stay as they are."""
        return self.lost == 0 and self.now.grid is not None and self.now.trains_like(self.was)


class Pauses(Protocol):
    """Pauses of a job for changes, by their kind: of copies or of parts, from peers or from storage."""

    @property
    def lead_s(self) -> float:
        """How long, at most, the leaving workers are needed once a change begins: to write down what they know, say."""
        ...

    def pause_s(self, change: Change) -> float:
        """Seconds without training from the change on, what is left of the pause before it included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job, with all that is known of it; JobChanged brings another one of the same id."""

    id: str
    submit_s: float
    work: float  # infinite = it has no end, and is judged by what it has done
    speed: Speed
    gpus: int = 1  # what the owner asked for; elastic policies may give fewer or more
    min_gpus: int = 1
    max_gpus: int = 0  # 0 = as many as asked for
    block: int = 1  # its GPUs come in so many on one node, for a process that has them all
    min_on_demand: int = 0  # of its GPUs so many, at least, are on demand: a core that no market takes
    restart_s: float = 0.0  # pause at every start and change of shape
    checkpoint_every_s: float = math.inf  # work since the last checkpoint is lost when a node is lost without notice
    checkpoint_write_s: float = 0.0  # a notice longer than this loses nothing
    survives: bool = False  # as long as one of its GPUs is left, a loss without notice loses nothing either
    pauses: Pauses | None = field(default=None, repr=False)  # by kind of change; None = `restart_s`, whatever the kind
    lead_s: float | None = None  # so long before a noticed node is taken it has to leave; None = at the notice
    weight: float = 1.0
    deadline_s: float | None = None
    purse_left_usd: float | None = None  # of what its owner lets it spend, about; None = no limit of its own
    hurry: bool = False  # the quickest within the limits, where no budget weighs time against money
    model: str = ""
    group: str = ""
    pools: tuple[str, ...] = ()  # where it may run; () = anywhere
    user: str = ""  # who submitted it, and for which team: they pay; "" = no user
    team: str = ""
    paused: bool = False  # its owner holds it back: it runs nowhere, and no policy sees it

    def __post_init__(self) -> None:
        named("job id", self.id)
        at_least("submit_s", self.submit_s, 0.0)
        if not self.work > 0:  # also refuses NaN
            raise InvalidValue("work", self.work, "a number above 0, or infinity for a job without an end")
        whole("gpus", self.gpus, 1)
        whole("min_gpus", self.min_gpus, 1)
        if self.max_gpus == 0:
            object.__setattr__(self, "max_gpus", max(self.gpus, self.min_gpus))
        whole("max_gpus", self.max_gpus, 1)
        if not self.min_gpus <= self.gpus <= self.max_gpus:
            raise InvalidValue("gpus", self.gpus, f"between min_gpus {self.min_gpus} and max_gpus {self.max_gpus}")
        whole("block", self.block, 1)
        if self.block > 1 and (self.min_gpus != self.max_gpus or self.gpus % self.block):
            raise InvalidValue("block", self.block, f"1, or a part of {self.gpus} GPUs and no other number")
        whole("min_on_demand", self.min_on_demand)
        if self.min_on_demand > self.min_gpus:
            raise InvalidValue("min_on_demand", self.min_on_demand, f"at most min_gpus {self.min_gpus}")
        at_least("restart_s", self.restart_s, 0.0)
        if not self.checkpoint_every_s > 0:
            raise InvalidValue("checkpoint_every_s", self.checkpoint_every_s, "above 0")
        at_least("checkpoint_write_s", self.checkpoint_write_s, 0.0)
        if self.lead_s is None and self.pauses is not None and self.survives:  # in the record, unlike the pauses
            object.__setattr__(self, "lead_s", self.pauses.lead_s)
        if self.lead_s is not None:
            at_least("lead_s", self.lead_s, 0.0)
        positive("weight", self.weight)
        for pool in self.pools:
            named("pools", pool)
        if self.deadline_s is not None:
            at_least("deadline_s", self.deadline_s, 0.0)
        if self.purse_left_usd is not None:
            at_least("purse_left_usd", self.purse_left_usd, 0.0)

    def pause_s(self, change: Change) -> float:
        """Seconds without training from this change on."""
        if self.pauses is not None:
            return self.pauses.pause_s(change)
        return change.left_s if change.is_of_spares else self.restart_s

    def speed_on(self, shape: Shape | None) -> Speed:
        """Its speed in this shape. A model that knows no grids is data parallel: it does not train in several parts."""
        if shape is None:
            return self.speed
        bind: Callable[[Shape], Speed] | None = getattr(self.speed, "bound_to", None)
        if bind is not None:
            return bind(shape)
        return self.speed if shape.grid is None or shape.grid.parts == 1 else _STANDSTILL

    def may_run_in(self, pool: str) -> bool:
        """Whether its owner lets it run there."""
        return not self.pools or pool in self.pools

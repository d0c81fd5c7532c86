"""The way of one event through `price`: every call of one decision that leads from one module into another.

A stay is a call whose module is not that of its caller, both below `sublet`. Values of `domain` are the language that
all modules speak, so that to make or to ask one is no stay. A room is a package. `python -m tests.journey` prints both
journeys as lists; `make figures` counts them, of any tree, in a process apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Money
from sublet.domain.offer import Market
from sublet.domain.plan import Plan, Snapshot
from sublet.perf.speedup import Amdahl
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.values import a_job, an_offer

__all__ = ["JOURNEYS", "Call", "Journey", "a_rented_pool", "jobs", "journey_on", "short_pools", "three_paid_kinds"]

LANGUAGE = "sublet.domain."
JOBS = 12  # that are there when the last one comes: the event that is looked at


class Call(NamedTuple):
    """One call into another module."""

    depth: int  # of such calls around it
    module: str
    name: str

    @property
    def room(self) -> str:
        """The package of the module, without its root."""
        return self.module.removeprefix("sublet.").rpartition(".")[0]


@dataclass(frozen=True)
class Journey:
    """The calls of one decision, in order."""

    calls: list[Call]

    @property
    def stays(self) -> int:
        """How many modules are entered, one by one."""
        return len(self.calls)

    @property
    def files(self) -> int:
        """How many of these there are."""
        return len({call.module for call in self.calls})

    @property
    def rooms(self) -> int:
        """How many packages these are in."""
        return len({call.room for call in self.calls})

    def lines(self) -> Iterator[str]:
        """The call list; what is called several times in a row is one line."""
        for call, times in groupby(self.calls):
            count = len(list(times))
            place = call.module.removeprefix("sublet.").replace(".", "/") + ".py"
            yield f"{'  ' * call.depth}{place} {call.name}" + (f" x {count}" if count > 1 else "")


class _EnoughError(Exception):
    """The decision that was asked for has been made."""


class _Followed:
    """`price`, whose calls are written down for the decision with so many jobs."""

    def __init__(self) -> None:
        self.policy, self.calls = Price(), list[Call]()

    def decide(self, snapshot: Snapshot) -> Plan:
        if len(snapshot.active) + len(snapshot.waiting) < JOBS:
            return self.policy.decide(snapshot)
        sys.setprofile(self._note)
        try:
            self.policy.decide(snapshot)
        finally:
            sys.setprofile(None)
        raise _EnoughError

    def _note(self, frame: Any, event: str, _: object) -> None:
        if event != "call" or not _is_counted(module := _module(frame)):
            return
        around = [_module(each) for each in _callers(frame)]
        if around[0] != module:
            pairs = zip([module, *around], around, strict=False)
            depth = sum(_is_counted(inner) and inner != outer for inner, outer in pairs) - 1
            self.calls.append(Call(depth, module, frame.f_code.co_qualname.replace(".<locals>", "")))


def _module(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_counted(module: str) -> bool:
    return module.startswith("sublet.") and not module.startswith(LANGUAGE)


def _callers(frame: Any) -> Iterator[Any]:
    """Frames of `sublet` around this one, up to the decision."""
    while (frame := frame.f_back) is not None and not isinstance(frame.f_locals.get("self"), _Followed):
        if _module(frame).startswith("sublet."):
            yield frame
    yield frame


def jobs() -> list[Any]:
    speeds = [Amdahl(parallel=parallel) for parallel in (0.8, 0.9, 0.95, 0.98)]
    return [
        a_job(f"j{at}", 60.0 * at, work=36_000.0 * (1 + at % 5), speed=speeds[at % 4], max_gpus=8, restart_s=30.0)
        for at in range(JOBS)
    ]


def journey_on(cloud: Cloud) -> Journey:
    """Of the event that the last job comes."""
    followed = _Followed()
    with suppress(_EnoughError):
        simulate(jobs(), followed, cloud, keep_segments=False)
    return Journey(followed.calls)


def a_rented_pool() -> Cloud:
    """Nodes of one pool are rented as they are needed."""
    return Cloud(offers=(an_offer("o", gpus=4, market=Market.ON_DEMAND),))


def three_paid_kinds() -> Cloud:
    """Three kinds of GPU are paid for, and do not go round."""
    offers = [an_offer(gpu, gpus=4, gpu=gpu, market=Market.ON_DEMAND) for gpu in ("T4", "V100", "A100")]
    limits = {offer.id: Limit(min_nodes=3, max_nodes=3) for offer in offers}
    return Cloud(offers=tuple(offers), limits=limits)


def short_pools() -> Cloud:
    """Spot and on demand in a pool each, and money for less than all could use."""
    offers = [
        an_offer("s", gpus=1, usd_per_h="1", pool="spot", hazard_per_h=0.1),
        an_offer("d", gpus=1, usd_per_h="3", pool="steady", market=Market.ON_DEMAND),
    ]
    limits = {"s": Limit(max_nodes=6), "d": Limit(max_nodes=2)}
    return Cloud(offers=tuple(offers), limits=limits, budget=Budget(purse=Money.from_usd("900")))


JOURNEYS: dict[str, Callable[[], Cloud]] = {"one rented pool": a_rented_pool, "three kinds, paid for": three_paid_kinds}


def main() -> None:
    """Print each journey."""
    for title, cloud in JOURNEYS.items():
        found = journey_on(cloud())
        sys.stdout.write(f"{title}: {found.stays} stays in {found.rooms} rooms, {found.files} files\n")
        sys.stdout.write("".join(f"  {line}\n" for line in found.lines()) + "\n")


if __name__ == "__main__":
    main()

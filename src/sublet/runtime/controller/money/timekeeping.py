"""Cloud time from one controller to the next, and cloud time that was lost.

A wall clock may be set forward or back between two starts, and what it says would be booked as rent. So a controller
leaves marks: cloud time beside the seconds since this machine was switched on, which cannot be set. Only after a
restart of the machine is the wall clock asked. It may be wrong then; but the machine knows how long it has been on, and
the last controller may have lived on for as long as it leaves no mark: no less than both is charged. What was rented is
never charged beyond its lease (core/recovery.py), and never for less than its provider has on record.

No node begins before it was ordered. Where a provider's record says so all the same, either the record is wrong, or our
clock has lost some time since. Only what was ordered before a doubted boot can show it. Then so much more time has
so much more time has.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sublet.kernel.ledger import Ledger
from sublet.machine.wall import WALL, Wall
from sublet.runtime.clock import Clock
from sublet.runtime.store import MetaKey, Store

MARK_EVERY_S = 10.0  # wall, while something is rented: how long after its last sign a controller may have lived on


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One instant, by every clock that there is."""

    cloud_s: float
    unix_s: float
    boot: str = ""  # of this machine; "" = not known
    on_s: float = 0.0  # since then, sleep included


def now(cloud_s: float, wall: Wall = WALL) -> Mark:
    """This instant."""
    boot, on_s = wall.since_boot()
    return Mark(cloud_s=cloud_s, unix_s=wall.unix(), boot=boot, on_s=on_s)


def time_away_s(last: Mark, today: Mark) -> float:
    """Wall seconds between two marks, by the clock that can be trusted most."""
    if _same_boot(last, today):
        return max(0.0, today.on_s - last.on_s)
    return max(0.0, today.unix_s - last.unix_s)


def _same_boot(last: Mark, today: Mark) -> bool:
    return bool(last.boot) and last.boot == today.boot


def least_away_s(last: Mark, today: Mark) -> float:
    """Wall seconds that may well have passed since the last sign of a controller, whatever a wall clock says."""
    if last.boot and today.boot and last.boot != today.boot:
        return MARK_EVERY_S + today.on_s  # rather too much rent in the ledger than too little: a purse is a limit
    return 0.0


def passed_s(store: Store, wall: Wall) -> float:
    """Wall seconds since the last mark, at least: what no clock that is set has a part in."""
    if (last := _last_mark(store, 1.0)) is None:
        return 0.0
    today = now(0.0, wall)
    return max(0.0, today.on_s - last.on_s) if _same_boot(last, today) else today.on_s if last.boot else 0.0


def mark(store: Store, clock: Clock) -> None:
    """A controller was alive now."""
    store.put(MetaKey.MARK, mark_text(clock))


def mark_text(clock: Clock) -> str:
    """Of this instant, as it is in the store."""
    return json.dumps(asdict(now(clock.now_s(), clock.wall)))


def last_sign_s(store: Store) -> float:
    """The cloud time at which the last controller was certainly alive."""
    last = _last_mark(store, 1.0)
    return max(store.last_s(), 0.0 if last is None else last.cloud_s)


def clock_from(store: Store, speedup: float, wall: Wall = WALL) -> Clock:
    """Cloud time goes on where it was, and by as much as has passed while no controller was there."""
    last = _last_mark(store, speedup)
    if last is None:
        store.put(MetaKey.EPOCH, repr(wall.unix()))
        return Clock(speedup=speedup, wall=wall)
    today = now(0.0, wall)
    passed_s, least_s = time_away_s(last, today) * speedup, least_away_s(last, today) * speedup
    began_s = max(last.cloud_s + passed_s, last_sign_s(store) + least_s)
    if not (certain := _same_boot(last, today)):
        store.put(MetaKey.DOUBTED, repr(began_s))
    doubted_s = float(store.get(MetaKey.DOUBTED) or 0.0)
    return Clock(speedup=speedup, began_s=began_s, wall=wall, certain=certain, doubted_s=doubted_s)


def _last_mark(store: Store, speedup: float) -> Mark | None:
    if (text := store.get(MetaKey.MARK)) is not None:
        return Mark(**json.loads(text))
    if (epoch := store.get(MetaKey.EPOCH)) is None:
        return None
    last_s = store.last_s()  # of a version that left no marks: its last event stands in for one
    return Mark(cloud_s=last_s, unix_s=float(epoch) + last_s / speedup)


WHOLE_S = 1.0  # wall: clouds have their times in whole seconds


def find_lost_time(node_id: str, began_s: float | None, *, ledger: Ledger, clock: Clock) -> float:
    """Put the clock forward by what it has lost, as the beginning on record of a node shows; by how much, in cloud s.

    Times that were told with that beginning are to be put forward, too.
    """
    ordered_s = ledger.ordered_s(node_id)
    if began_s is None or ordered_s is None or ordered_s >= clock.doubted_s:
        return 0.0
    lost_s = ordered_s - began_s
    if lost_s <= WHOLE_S * clock.speedup:
        return 0.0
    clock.put_forward(lost_s)
    return lost_s

"""Bugs that are mended, put back: a world that does not find them again would find no other like them, either.

Each `put_back` replaces, for as long as the patch lasts, a few lines of the shipped code by what stood there before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sublet.errors import PolicyFailed
from sublet.kernel import kernel
from sublet.runtime import store
from sublet.runtime.agent.link import Link
from sublet.runtime.controller.core.decisions import Decisions, Made, Planner
from sublet.runtime.controller.core.pump import Pump
from sublet.runtime.controller.core.recovery import Absence, Recovery
from sublet.runtime.controller.jobs.groups import Groups
from sublet.runtime.controller.memory.table import job_of
from sublet.runtime.controller.money import timekeeping
from sublet.runtime.controller.nodes.leases import Leases
from sublet.runtime.controller.nodes.messages import AgentAuth
from sublet_lab.world import controllers

__all__ = ["BUGS", "without_mend"]

PutBack = Callable[[pytest.MonkeyPatch], None]


@contextmanager
def without_mend(name: str) -> Iterator[None]:
    """The code as it was before this bug was mended; with "" as it is."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            BUGS[name](patch)
        yield


# ---------------------------------------------------------------------- the five that were known


def _policy(patch: pytest.MonkeyPatch) -> None:
    """An exception of the policy ends the thought, and nobody is told: a plan is waited for, and none is made."""

    async def plan(self, look):
        snapshot = look()
        try:
            return Made(await self.ask(snapshot), snapshot, 0.0)
        except PolicyFailed:
            await asyncio.Event().wait()

    patch.setattr(Planner, "plan", plan)


def _hole(patch: pytest.MonkeyPatch) -> None:
    """A line on which nothing comes any more is kept until the node ends by its lease."""
    patch.setattr(Link, "watch", lambda self, lease_s, ping: True)
    patch.setattr(Link, "watch_s", lambda self, lease_s: float("inf"))


def _forge(patch: pytest.MonkeyPatch) -> None:
    """Any node speaks for any worker."""
    patch.setattr(AgentAuth, "may_speak", lambda self, node_id, worker_id: job_of(worker_id) in self._records)


def _clock(patch: pytest.MonkeyPatch) -> None:
    """The wall clock says how long nobody was there, and nobody doubts it."""
    patch.setattr(timekeeping, "time_away_s", lambda last, today: max(0.0, today.unix_s - last.unix_s))
    patch.setattr(Absence, "was_too_long", property(lambda self: False))


def _flags(patch: pytest.MonkeyPatch) -> None:
    """A start without flags begins with the budget of a first one."""
    patch.setattr(controllers, "with_budget_in_force", lambda settings, store: settings)


# ---------------------------------------------------------------------- those that the first seeds found


def _heal(patch: pytest.MonkeyPatch) -> None:
    """N1: a group that lost a node is sent back there, until the kernel has heard of it, too."""
    mended, release = Groups.heal, Leases.release

    def heal(self, record):
        gone, self._nodes.gone = self._nodes.gone, set()
        try:
            mended(self, record)
        finally:
            self._nodes.gone = gone

    async def release_lost(self, node_id):
        self._tenants.node_lost(node_id, self._clock.wall.monotonic())
        await release(self, node_id)

    patch.setattr(Groups, "heal", heal)
    patch.setattr(Leases, "release_lost", release_lost)


def _one_breath(patch: pytest.MonkeyPatch) -> None:
    """N2: an order of before the loss is carried out after it."""
    mended = Groups.carry_out

    def carry_out(self, action):
        gone, self._nodes.gone = self._nodes.gone, set()
        try:
            mended(self, action)
        finally:
            self._nodes.gone = gone

    patch.setattr(Groups, "carry_out", carry_out)


def _start(patch: pytest.MonkeyPatch) -> None:
    """N3: a provider that does not answer once ends the controller at its start."""

    async def open_provider(self):
        await self._nodes.open_market()
        await self._nodes.provider.list()

    patch.setattr(Recovery, "_open_provider", open_provider)


def _stop(patch: pytest.MonkeyPatch) -> None:
    """N4: what is given back at the end is rented anew, because the last plan wants it."""
    patch.setattr(Leases, "rent_no_more", lambda self: None)
    patch.setattr(kernel, "let_go", lambda *_: None)  # the kernel alone would not ask for what nobody needs, by now


def _refused(patch: pytest.MonkeyPatch) -> None:
    """N5: a node whose agent came is refused all the same."""
    patch.setattr(Pump, "_is_here", lambda self, node_id: False)


def _twice(patch: pytest.MonkeyPatch) -> None:
    """N6: what was ordered while the controller came back is ordered again."""
    repeat, rent = Recovery._repeat_orders, Leases.rent

    def repeat_orders(self, held):
        repeat(self, list(self._pump.kernel.cluster.nodes))

    async def rent_again(self, action, *, again=False):
        if action.node_id in self._asked:  # as if nobody had asked
            await self._rent(action, in_doubt=False)
            del self._asked[action.node_id]
        else:
            await rent(self, action, again=again)

    patch.setattr(Recovery, "_repeat_orders", repeat_orders)
    patch.setattr(Leases, "rent", rent_again)


def _tables(patch: pytest.MonkeyPatch) -> None:
    """N7: the tables are committed one by one, and their version after them."""

    def prepare(db, path):
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            for table in (*store.TABLES, *store.ADDED_TABLES):
                db.execute(table)
            db.execute("INSERT INTO meta VALUES (?, ?)", (store.MetaKey.SCHEMA, str(store.SCHEMA_VERSION)))
        if (found := store._fact(db, store.MetaKey.SCHEMA)) != str(store.SCHEMA_VERSION):
            raise store.BadInput(path, f"is of version {found}")

    patch.setattr(store, "prepare_tables", prepare)


def _two_plans(patch: pytest.MonkeyPatch) -> None:
    """N8: two plans are made at once, and the older one may come last."""
    mended = Decisions.make

    async def make(self):
        self._making = False
        await mended(self)

    patch.setattr(Decisions, "make", make)


BUGS: dict[str, PutBack] = {
    "policy": _policy,
    "hole": _hole,
    "forge": _forge,
    "clock": _clock,
    "flags": _flags,
    "N1": _heal,
    "N2": _one_breath,
    "N3": _start,
    "N4": _stop,
    "N5": _refused,
    "N6": _twice,
    "N7": _tables,
    "N8": _two_plans,
}

"""What is told is heard in order, is in the log before it is done, and nothing is done when it cannot be."""

from __future__ import annotations

import asyncio
import sqlite3
from types import SimpleNamespace

import pytest

from sublet.domain.actions import MakePlan, RentNode
from sublet.domain.budget import UNLIMITED
from sublet.domain.events import BudgetChanged, NodeLost, NodeNoticed, NodeReady, PlanMade
from sublet.domain.plan import Plan
from sublet.errors import BadInput
from sublet.kernel.kernel import Kernel
from sublet.runtime.clock import Clock
from sublet.runtime.controller.core.pump import Pump
from sublet.runtime.controller.money.bill import Bill
from sublet.runtime.controller.watch.history import Chronicle, HistoryRow
from sublet.runtime.store import Store
from tests.rigs.story import OFFERS


class Outlet:
    """Writes down what it is given, with how much was in the log and whether the kernel knew the node by then."""

    def __init__(self, store):
        self._store, self.done, self.pump = store, [], None

    def after_notice(self, event):
        self.before_loss(event)

    def before_loss(self, event):
        node = self.pump.kernel.cluster.nodes.get(event.node_id)
        self.done.append((type(event).__name__, "gone" if node is None else node.phase.value))
        return ()

    def take_plan(self, event, refusal):
        pass

    def carry_out(self, action):
        self.done.append((type(action).__name__, self._store.last_seq()))

    def drain(self):
        pass


@pytest.fixture
def world(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    kernel, outlet = Kernel(OFFERS), Outlet(store)
    bill = Bill(kernel, lambda _: False)
    pump = Pump(kernel, store=store, clock=Clock(), bill=bill, chronicle=Chronicle(store, lambda _: True, lambda _: ""))
    outlet.pump = pump
    quiet = SimpleNamespace(follow=lambda event, actions: None, write_if_due=lambda: None)
    pump.connect(journal=quiet, departures=outlet, outlet=outlet, alarms=None)
    yield pump, outlet, store
    store.close()


def with_a_node(pump, outlet):
    """One is rented and ready."""
    pump.tell(BudgetChanged(pump.now_s(), UNLIMITED))
    pump.tell(PlanMade(pump.now_s(), Plan(hold={"spot": 1}), pump.kernel.seen))
    pump.tell(NodeReady(pump.now_s(), "n1"))
    outlet.done.clear()


def test_an_order_is_carried_out_when_its_event_is_in_the_log(world):
    pump, outlet, _ = world

    async def live():
        pump.queue(BudgetChanged(pump.now_s(), UNLIMITED))
        pump.tell(PlanMade(pump.now_s(), Plan(hold={"spot": 1}), 1))

    asyncio.run(live())
    assert outlet.done == [(MakePlan.__name__, 2), (RentNode.__name__, 2)]


def test_a_notice_and_a_loss_of_one_moment_are_heard_in_the_order_in_which_they_were_told(world):
    """Of the notice after the kernel, of the loss before it: it still knows then who was there."""
    pump, outlet, _ = world

    async def live():
        with_a_node(pump, outlet)
        pump.queue(NodeNoticed(pump.now_s(), "n1", pump.now_s() + 120.0))
        pump.queue(NodeLost(pump.now_s(), "n1"))
        pump.wake()
        await asyncio.sleep(0)

    asyncio.run(live())
    assert outlet.done[:2] == [("NodeNoticed", "releasing"), ("NodeLost", "releasing")]  # nobody is on it: it goes back


def test_nobody_is_warned_of_a_node_that_is_not_held(world):
    pump, outlet, store = world

    async def live():
        with_a_node(pump, outlet)
        before = store.last_seq()
        pump.tell(NodeLost(pump.now_s(), "n77"))
        assert store.last_seq() == before

    asyncio.run(live())
    assert outlet.done == []


def test_who_does_not_listen_hears_later_and_in_another_order(world):
    pump, outlet, _ = world

    async def live():
        with_a_node(pump, outlet)
        pump.stop_listening()
        pump.tell(NodeLost(pump.now_s(), "n1"))
        pump.tell(NodeNoticed(pump.now_s(), "n1", pump.now_s() + 120.0))
        assert outlet.done == []
        pump.hear_first(lambda told: told[::-1])

    asyncio.run(live())
    assert [what for what, _ in outlet.done[:2]] == ["NodeNoticed", "NodeLost"]


def test_nothing_is_done_when_the_store_fails(world, monkeypatch):
    pump, outlet, store = world

    def full(at_s, line):
        raise sqlite3.OperationalError("database or disk is full")

    async def live():
        with_a_node(pump, outlet)
        monkeypatch.setattr(store, "append", full)
        pump.tell(NodeNoticed(pump.now_s(), "n1", pump.now_s() + 120.0))
        pump.note(HistoryRow(kind="Alarm", text="too late"))
        await asyncio.sleep(0)

    asyncio.run(live())
    assert outlet.done == []
    assert pump.ended.is_set()
    assert isinstance(pump.failure, BadInput)

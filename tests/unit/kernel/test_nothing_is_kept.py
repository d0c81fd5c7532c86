"""Of jobs that have ended and of nodes that are gone the kernel keeps nothing, or its tables would grow for ever."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum

import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import (
    AvailabilityChanged,
    JobCancelled,
    JobChanged,
    JobFailed,
    JobFinished,
    NodeLost,
    NodeNoticed,
)
from sublet.domain.money import Money
from sublet.perf.speedup import PowerLaw
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


def parts(thing):
    """What it is made of: by name of the attribute, key or place."""
    if isinstance(thing, Mapping):
        for key, value in list(thing.items()):
            yield repr(key), key
            yield repr(key), value
    elif isinstance(thing, Collection):
        yield from ((str(at), each) for at, each in enumerate(thing))
    elif is_dataclass(thing):
        yield from ((each.name, getattr(thing, each.name, None)) for each in fields(thing))
    elif type(thing).__module__.startswith("sublet"):
        names = {*getattr(thing, "__dict__", {}), *(n for kind in type(thing).__mro__ for n in _slots(kind))}
        yield from ((name, getattr(thing, name, None)) for name in sorted(names))


def _slots(kind):
    slots = kind.__dict__.get("__slots__", ())
    return [slots] if isinstance(slots, str) else slots


# One job of each kind tells what is like it, what was paid was paid, stories have an end, and markets are remembered.
MEANT = ("census._kinds", "ledger.closed", "_stories", "memory._falls")


def kept(kernel, name):
    """Where this name stands and is not meant to."""
    return [path for path in places(kernel, name) if not any(each in path for each in MEANT)]


def places(thing, name, path="kernel", seen=None):
    """Where in it this name stands."""
    seen = {} if seen is None else seen
    if isinstance(thing, str):
        return [path] if thing == name else []
    if id(thing) in seen or isinstance(thing, int | float | bytes | Enum | type(None)) or callable(thing):
        return []
    seen[id(thing)] = thing  # held, or its id could be another's
    return [found for at, part in parts(thing) for found in places(part, name, f"{path}.{at}", seen)]


def town(*job_ids, nodes=3, **facts):
    offers = [an_offer("o", gpus=2, pool="p"), an_offer("r", gpus=2, pool="r", usd_per_h="9")]
    driver = Driver(offers, limits={"o": Limit(max_nodes=nodes), "r": Limit(max_nodes=0)}, **facts)
    driver.submit(*(a_job(job_id, work=1e4, gpus=1, max_gpus=4, speed=PowerLaw(exponent=0.9)) for job_id in job_ids))
    driver.settle(Equal())
    return driver


ENDS = {"finished": JobFinished, "cancelled": JobCancelled, "failed": lambda at_s, job_id: JobFailed(at_s, job_id, "x")}


@pytest.mark.parametrize("purse", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_of_a_job_that_has_ended_nothing_is_kept(end, purse):
    """It has waited, run, been wider and narrower, and lost a node on its way."""
    budget = {"budget": Budget(purse=Money.from_usd("1000"))} if purse else {}
    driver = town("one", "other", **budget)
    assert kept(driver.kernel, "one")
    driver.now_s = 20.0
    driver.tell(NodeNoticed(20.0, min(driver.kernel.cluster.nodes), 30.0))
    driver.settle(Equal())
    driver.tell(NodeLost(30.0, min(driver.kernel.cluster.nodes)))
    driver.now_s = 30.0
    driver.settle(Equal())
    driver.now_s = 100.0
    driver.tell(AvailabilityChanged(100.0, "o", 1))
    driver.settle(Equal())
    driver.now_s = 200.0
    driver.tell(AvailabilityChanged(200.0, "o", 3))
    driver.settle(Equal())
    driver.now_s = 400.0
    driver.tell(ENDS[end](400.0, "one"))
    driver.settle(Equal())
    assert "one" not in driver.kernel.jobs
    assert kept(driver.kernel, "one") == []
    assert "other" in driver.kernel.active


@pytest.mark.parametrize("end", ENDS)
def test_of_one_that_never_ran_neither(end):
    driver = town("first", "last", nodes=1)
    driver.submit(a_job("waits", work=10.0, gpus=4, min_gpus=4))
    driver.settle(Equal())
    assert "waits" not in driver.kernel.active
    driver.tell(ENDS[end](1.0, "waits"))
    driver.settle(Equal())
    assert kept(driver.kernel, "waits") == []


def test_of_nodes_that_are_gone_nothing_is_kept():
    driver = town("one", "other")
    nodes = sorted(driver.kernel.cluster.nodes)
    driver.tell(NodeNoticed(20.0, nodes[0], 30.0))
    driver.now_s = 20.0
    driver.settle(Equal())
    for node_id in nodes:
        if node_id in driver.kernel.cluster.nodes:
            driver.now_s += 10.0
            driver.tell(NodeLost(driver.now_s, node_id))
            driver.settle(Equal())
    gone = [node_id for node_id in nodes if node_id not in driver.kernel.cluster.nodes]
    assert gone
    for node_id in gone:
        assert kept(driver.kernel, node_id) == []


def test_while_it_is_there_a_job_has_a_story_that_tells_what_its_owner_changed():
    driver = town("one")
    job = driver.kernel.jobs["one"].job
    before = driver.kernel.story("one")
    driver.tell(JobChanged(5.0, replace(job, weight=2.0)))
    assert driver.kernel.story("one")[: len(before)] == before
    assert "JobChanged" in driver.kernel.story("one")[len(before)]

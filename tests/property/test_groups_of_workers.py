"""A group of workers under any order of orders, losses, ends, cut lines and restarts of the controller."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.runtime.group.protocol import Outcome
from tests.group_world import NODES, World

PLACEMENTS = [
    (("a", 1),),
    (("b", 2),),
    (("a", 1), ("b", 1)),
    (("a", 2), ("c", 1)),
    (("b", 1), ("c", 1), ("d", 2)),
    (("d", 1), ("a", 1)),
]
dice = st.lists(st.integers(0, 9_999), min_size=20, max_size=150)


def _throw(world, number):
    """One thing happens; which one is written in the number."""
    kind, which = number % 40, number // 40
    node = NODES[which % len(NODES)]
    processes = sorted(world.processes.values(), key=lambda p: p.id)
    process = processes[which % len(processes)] if processes else None
    if kind < 4:
        world.move(PLACEMENTS[which % len(PLACEMENTS)])
    elif kind == 4:
        world.stop()
    elif kind == 5:
        world.lose(node)
    elif kind == 6 and process:
        world.exit(process, -9)
    elif kind == 7 and process and which % 3 == 0:
        world.exit(process, 1, "Traceback")
    elif kind == 8 and process and which % 5 == 0:
        world.exit(process, 0)
    elif kind == 9 and process and which % 3 == 0:
        process.stuck = True
    elif kind == 10:
        world.hang_up(node)
    elif kind in (11, 12):
        world.reconnect(node)
    elif kind == 13 and which % 2 == 0:
        world.restart_controller()
    elif kind == 14 and which % 20 == 0:
        world.cancel()
    elif kind == 15 and which % 20 == 0:
        world.finish()
    elif kind in (16, 17):
        world.tick((0.1, 1.0, 3.0, 12.0, 40.0, 70.0, 700.0)[which % 7])
    elif kind < 24:
        world.deliver_down(node)
    elif kind < 31:
        world.deliver_up(node)
    elif process:
        world.act(process)


def _known(world):
    """Every living process is one of the group's, or its end is on the way."""
    starting = {message.worker_id for queue in world.down.values() for message in queue}
    for process in world.processes.values():
        assert process.id in world.group.workers or process.id in starting or not world.online[process.node], (
            f"{process.id} is forgotten"
        )


@settings(max_examples=250, deadline=None)
@given(dice, st.booleans(), st.sampled_from([None, *PLACEMENTS]), st.booleans())
def test_whatever_happens_one_round_trains_and_every_order_is_answered(numbers, patient, first, sdk):
    world = World(infra=None if patient else 3, user=None if patient else 1, sdk=sdk)
    if first is not None:
        world.move(first)
        world.calm(6)
    for number in numbers:
        _throw(world, number)
        assert len(world.training()) <= 1, "two groups train at once"
        _known(world)
    world.calm()
    if world.kernel.name == "broken":
        world.move(PLACEMENTS[2])
        world.calm()
    kernel = world.kernel
    assert kernel.name in ("waiting", "running", "ended", "broken"), f"an order is open: {kernel}"
    if kernel.name == "running":
        running, wanted = len(world.processes), sum(gpus for _, gpus in kernel.placement)
        assert running == wanted or (not sdk and 0 < running < wanted), "without the SDK some may be through"
        assert len(world.training()) == 1 or not sdk
        assert world.group.training
    else:
        assert not world.processes, f"{kernel.name}, and {list(world.processes)} still run"


@settings(max_examples=100, deadline=None)
@given(dice)
def test_what_the_group_thinks_it_trains_is_what_trains(numbers):
    """The last step that the group knows of is never above the last step made."""
    world = World(infra=None, user=None)
    for number in numbers:
        _throw(world, number)
    world.calm()
    if world.kernel.name == "running":
        top = max(process.step for process in world.processes.values())
        assert top - 8 <= world.group.step <= top  # the last reports are on their way


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 4), st.integers(1, 3))
def test_the_retry_budget_of_a_user_is_kept(limit, steps):
    world = World(user=limit, infra=None)
    world.move((("a", 1), ("b", 1)))
    failed = 0
    for _ in range(limit + 3):
        world.calm(40)
        if world.kernel.name == "ended":
            break
        for process in list(world.processes.values())[:1]:
            for _ in range(steps):
                world.act(process)
            world.exit(process, 1, "boom")
            failed += 1
    world.calm(40)
    assert failed == limit + 1
    assert world.kernel.name == "ended"
    assert world.outcomes[-1].outcome is Outcome.FAILED
    assert (world.outcomes[-1].why, world.outcomes[-1].exit_code) == ("boom", 1)
    assert not world.processes

"""A group of workers under any order of orders, losses, ends, cut lines and restarts of the controller."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.plan import Phase
from sublet.runtime.group.protocol import Outcome
from tests.rigs.group_world import World
from tests.rigs.sizes import examples

WIDTHS = [(1, 1), (2, 1), (2, 2), (3, 2), (4, 3), (4, 4)]  # (workers, nodes)
rng = st.lists(st.integers(0, 9_999), min_size=20, max_size=150)


def _throw(world, number):
    """One thing happens; which one is written in the number."""
    kind, which = number % 40, number // 40
    agents = sorted(world.agents)
    node = agents[which % len(agents)] if agents else None
    processes = sorted(world.processes.values(), key=lambda p: p.id)
    process = processes[which % len(processes)] if processes else None
    if kind < 3:
        world.resize(*WIDTHS[which % len(WIDTHS)])
    elif kind == 3:
        world.resize(0, 0)
    elif kind == 4:
        for booting in world.booting[:1]:
            world.boot(booting)
        for releasing in world.releasing[:1]:
            world.release(releasing)
    elif kind == 5 and node:
        (world.lose, world.notice, world.evacuate, world.evacuate_all)[which // len(agents) % 4](node)
    elif kind == 6 and process:
        world.exit(process, -9)
    elif kind == 7 and process and which % 3 == 0:
        world.exit(process, 1, "Traceback")
    elif kind == 8 and process and which % 5 == 0:
        world.exit(process, 0)
    elif kind == 9 and process and which % 3 == 0:
        process.stuck = True
    elif kind == 10 and node:
        world.hang_up(node)
    elif kind in (11, 12) and node:
        world.reconnect(node)
    elif kind == 13 and which % 2 == 0:
        world.restart_controller()
    elif kind == 14 and which % 20 == 0:
        world.cancel()
    elif kind == 15 and which % 20 == 0:
        world.finish()
    elif kind in (16, 17):
        world.tick((0.1, 1.0, 3.0, 12.0, 40.0, 70.0, 700.0)[which % 7])
    elif kind < 24 and node:
        world.deliver_down(node)
    elif kind < 31 and node:
        world.deliver_up(node)
    elif process:
        world.act(process)


def _known(world):
    """Every living process is one of the group's, or its end is on the way."""
    starting = {message.worker_id for agent in world.agents.values() for message in agent.down}
    for process in world.processes.values():
        known = process.id in world.group.workers or process.id in starting
        assert known or not world.agents[process.node].online, f"{process.id} is forgotten"


@settings(max_examples=examples(250), deadline=None)
@given(rng, st.booleans(), st.sampled_from([None, *WIDTHS]), st.booleans())
def test_whatever_happens_one_round_trains_and_every_order_is_answered(numbers, patient, first, sdk):
    world = World(infra=None if patient else 3, user=None if patient else 1, sdk=sdk)
    if first is not None:
        world.resize(*first)
        world.calm(6)
    for number in numbers:
        _throw(world, number)
        assert len(world.training()) <= 1, "two groups train at once"
        _known(world)
    world.calm()
    assert not world.booting
    assert not world.releasing
    if world.state is None or not world.wanted:
        assert world.phase in (None, Phase.WAITING), world.state
        assert not world.processes, f"{world.phase}, and {list(world.processes)} still run"
        return
    assert world.phase is Phase.RUNNING, world.state
    running, wanted = len(world.processes), sum(gpus for _, gpus in world.placement)
    assert wanted == world.wanted
    assert running == wanted or (not sdk and 0 < running < wanted), "without the SDK some may be through"
    assert len(world.training()) == 1 or not sdk
    assert world.group.training


@settings(max_examples=examples(100), deadline=None)
@given(rng)
def test_what_the_group_thinks_it_trains_is_what_trains(numbers):
    """The last step that the group knows of is never above the last step made."""
    world = World(infra=None, user=None)
    for number in numbers:
        _throw(world, number)
    world.calm()
    if world.phase is Phase.RUNNING:
        top = max(process.step for process in world.processes.values())
        assert top - 8 <= world.group.step <= top  # the last reports are on their way


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 4), st.integers(1, 3))
def test_the_retry_budget_of_a_user_is_kept(limit, steps):
    world = World(user=limit, infra=None)
    world.resize(2, 2)
    failed = 0
    for _ in range(limit + 3):
        world.calm(40)
        if world.state is None:
            break
        for process in list(world.processes.values())[:1]:
            for _ in range(steps):
                world.act(process)
            world.exit(process, 1, "boom")
            failed += 1
    world.calm(40)
    assert failed == limit + 1
    assert world.state is None
    assert world.outcomes[-1].outcome is Outcome.FAILED
    assert (world.outcomes[-1].why, world.outcomes[-1].exit_code) == ("boom", 1)
    assert not world.processes


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 40), st.integers(2, 4))
def test_a_script_that_dies_at_a_width_that_it_never_tried_has_lost_nothing(steps, workers):
    world = World(user=0, infra=None)
    world.resize(1, 1)
    world.calm(10 + steps)
    before = world.group.step
    assert before > 0
    assert world.saved == 0
    world.resize(workers, workers)
    for _ in range(60):
        if any(process.world > 1 for process in world.processes.values()):
            break
        world.calm(1)
    assert world.saved >= before, "the regroup waits for the checkpoint"
    for process in list(world.processes.values()):
        world.exit(process, 1, "CUDA out of memory")
    world.calm(60)
    assert world.phase is Phase.RUNNING
    assert world.wanted == len(world.processes) == workers - 1 or world.wanted == 1
    assert world.group.step >= before
    assert Outcome.NARROWED in [news.outcome for news in world.outcomes]

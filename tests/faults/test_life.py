"""Whole lives: the same seed is the same life."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from sublet.machine.wall import WALL
from sublet.runtime.agent.agent import Agent
from sublet_lab.world.heap import Livelock, World
from sublet_lab.world.life import Life, live
from sublet_lab.world.story import draw_story


def test_a_life_without_faults_comes_to_its_end_and_breaks_no_law() -> None:
    outcome = live(replace(draw_story(1), faults=()))
    assert outcome.broken is None
    assert outcome.lives == 1


def test_the_same_seed_is_the_same_life() -> None:
    first, second = live(draw_story(7)), live(draw_story(7))
    assert (first.digest, first.events, first.commits) == (second.digest, second.events, second.commits)
    assert live(draw_story(8)).digest != first.digest


def test_a_question_to_the_real_machine_breaks_a_law_though_somebody_swallows_it() -> None:
    def ask(life: Life) -> None:
        def swallowed() -> None:
            with contextlib.suppress(AssertionError):
                WALL.monotonic()

        life.stage.world.after(30.0, swallowed)

    broken = Life(replace(draw_story(1), faults=()), watch=ask).live().broken
    assert broken is not None
    assert broken.law == "X"


def test_agents_that_turn_without_rest_break_a_law_instead_of_hanging_the_world(monkeypatch):
    """A lease that is over and ends nothing is due at every turn, ten thousand times a second."""
    monkeypatch.setattr(Agent, "_patience_s", lambda self: 0.0)
    monkeypatch.setattr("sublet_lab.world.heap.MOST_EVENTS", 10_000)
    broken = live(replace(draw_story(1), faults=())).broken
    assert broken is not None
    assert broken.law == "B"
    assert " events in " in broken.what
    assert broken.what.count("agent of n1: ") >= 6


def test_a_world_that_does_not_leave_an_instant_says_what_went_round():
    world = World(1)

    def again() -> None:
        world.after(0.0, again)

    world.after(5.0, again)
    with pytest.raises(Livelock, match=r"5001 events at one instant; the last: 5\.000000 .*again"):
        world.run(world.now_s + 10.0)
    assert world.age_s == 5.0


def test_a_world_may_do_much_at_one_instant_and_more_later():
    world = World(1)
    for at_s in (1.0, 2.0):
        for _ in range(5000):
            world.after(at_s, lambda: None)
    world.run(world.now_s + 3.0)
    assert world.steps == 10_000

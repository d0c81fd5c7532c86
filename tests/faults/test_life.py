"""Whole lives: the same seed is the same life."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from sublet.machine.wall import WALL
from sublet.testing.world.life import Life, live
from sublet.testing.world.story import draw_story


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

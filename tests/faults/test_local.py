"""Lives on the shipped cloud in a box: its market, its stock, its notices and its records, over agents of a world."""

from __future__ import annotations

import pytest

from sublet_lab.world.life import live
from sublet_lab.world.story import draw_story


@pytest.mark.parametrize("seed", range(8))
def test_lives_in_a_box_break_no_law(seed):
    assert live(draw_story(seed, cloud="local")).broken is None


def test_the_same_seed_is_the_same_life_there():
    first, second = live(draw_story(3, cloud="local")), live(draw_story(3, cloud="local"))
    assert (first.digest, first.events) == (second.digest, second.events)

"""Lives on a Ray cluster without Ray: stewards, claims, supply and life lines of the shipped provider."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sublet_lab.world.life import live
from sublet_lab.world.story import draw_story


@pytest.mark.parametrize("seed", range(5))
def test_lives_on_a_ray_cluster_break_no_law(seed):
    assert live(draw_story(seed, cloud="ray")).broken is None


def test_the_same_seed_is_the_same_life_there():
    first, second = live(draw_story(3, cloud="ray")), live(draw_story(3, cloud="ray"))
    assert (first.digest, first.events) == (second.digest, second.events)


def test_a_life_at_any_cloud_needs_no_library_of_a_cloud():
    names = ("ray", "boto3", "torch", "scipy")
    code = f"import sys, sublet_lab.world.life; print([name for name in {names} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"

"""Controllers that wake up beside their successors, and stores that are cut all the time: no law is broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.errors import StaleController
from sublet.runtime.store import Store
from sublet_lab.world.disk import Disk
from sublet_lab.world.heap import Process, World
from sublet_lab.world.life import live
from sublet_lab.world.story import KNOWN, PLAIN, draw_story
from tests.rigs.sizes import sized

TWO = ("second_controller",)
CUT = {"events_a_snapshot": 5, "events_a_file": 20}


def lives(seeds, kinds, **paces):
    stories = [draw_story(seed, kinds) for seed in seeds]
    return [live(replace(story, paces=replace(story.paces, **paces))) for story in stories]


def broken(outcomes):
    return {found.story.seed: str(found.broken) for found in outcomes if found.broken is not None}


def test_one_that_wakes_up_beside_its_successor_does_nothing_and_ends():
    outcomes = lives(range(sized(6, 12)), TWO)
    assert not broken(outcomes)
    assert sum((Counter(found.effects) for found in outcomes), Counter())["second_controller"] >= 2.5 * len(outcomes)


def test_so_it_is_among_all_other_faults_and_with_a_log_that_is_cut_at_every_turn():
    outcomes = lives(range(100, sized(106, 120)), (*PLAIN, *KNOWN, *TWO * 12), **CUT)
    assert not broken(outcomes)


def test_a_store_that_lets_anybody_write_breaks_the_law(monkeypatch):
    monkeypatch.setattr(Store, "_refuse_stale", lambda store: None)
    assert any("F: " in why for why in broken(lives(range(6), TWO)).values())


@pytest.mark.parametrize("seed", [3, 11])
def test_a_life_with_two_controllers_is_the_same_each_time(seed):
    one, two = (live(draw_story(seed, TWO)) for _ in range(2))
    assert (one.digest, one.events) == (two.digest, two.events)


@pytest.mark.parametrize("by", ["another controller", "a visitor", "somebody behind its back"])
def test_whose_the_store_is_is_seen_at_once_whoever_changed_it(by):
    disk, world = Disk(), World(0)

    def store_of(name):
        return Store(Path("log.sqlite"), connect=lambda _: disk.connect(Process(world, name, "here")))

    first, second = store_of("first"), store_of("second")
    first.claim("first", after=0)
    first.insist()
    if by == "another controller":
        second.claim("second", after=1)
    elif by == "a visitor":
        second.put("holder", "nobody")
    else:
        assert disk.edit("UPDATE meta SET value = ? WHERE key = 'holder'", ("nobody",)) == 1
    with pytest.raises(StaleController):
        first.insist()

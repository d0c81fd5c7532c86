"""Writers race for one bucket over a bad line (`sublet_lab.races`); `python -m sublet_lab.races` runs more."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from sublet.machine.objects import StoreFailed
from sublet.train.checkpoint.bucket import Bucket, Head, ObjectFolder, Register
from sublet.train.checkpoint.checkpoints import Checkpoints
from sublet_lab.races.race import race
from sublet_lab.races.shelf import Shelf

FOUND = (30, 48, 50, 62)  # an announcement that was lost, and its writer loaded all the same


@pytest.mark.parametrize("seed", [*range(12), *FOUND])
def test_no_law_breaks_however_requests_fare(seed):
    course = race(seed)
    assert not course.broken
    assert course.commits > 0
    assert course.loads > 2


def test_a_course_is_its_seeds_alone():
    assert race(3) == race(3)


def test_a_bucket_that_forgets_generations_is_found_out(monkeypatch):
    """Otherwise the laws look at nothing."""
    from_json = Head.from_json.__func__

    def blind(cls, text):
        return replace(from_json(cls, text), generation=0)

    monkeypatch.setattr(Head, "from_json", classmethod(blind))
    assert "rising" in {race(seed).broken.partition(":")[0] for seed in range(6)}


def test_a_bucket_that_announces_nothing_is_found_out(monkeypatch):
    monkeypatch.setattr(Bucket, "announce", lambda *_args: None)
    assert "stale" in {race(seed).broken.partition(":")[0] for seed in range(12)}


def test_a_bucket_that_cleans_up_what_may_be_committed_is_found_out(monkeypatch):
    monkeypatch.setattr(ObjectFolder, "asked", property(lambda _: False, lambda *_: None), raising=False)
    assert "whole" in {race(seed).broken.partition(":")[0] for seed in range(6)}


def test_nobody_loads_before_its_generation_is_announced():
    shelf = Shelf(lambda: 1.75e9)
    old = Bucket(shelf)
    old.announce(1)
    shelf.put, put = lambda *_args, **_facts: _fail(), shelf.put
    new = Checkpoints(Bucket(shelf), writer="new", generation=2)
    with new:
        with pytest.raises(StoreFailed):
            new.newest()
        shelf.put = put
        assert new.newest() is None
        assert Register(shelf).read().generation == 2


def _fail():
    raise StoreFailed("s3://races/job", "nobody answered", hint="try again")

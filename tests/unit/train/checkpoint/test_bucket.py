"""A bucket of checkpoints where it differs from a directory: answers that are lost, a HEAD that is, and old remains."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("obstore")

from obstore.store import MemoryStore

from sublet.errors import CheckpointFailed, StaleWriter
from sublet.machine.objects import Overtaken, StoreFailed
from sublet.machine.remote import RemoteObjects
from sublet.train.checkpoint.bucket import HEAD, Bucket, Head, Register
from sublet.train.checkpoint.checkpoints import Checkpoints
from sublet.train.checkpoint.saving import Saver
from sublet.train.checkpoint.store import step_of
from sublet.train.link.agent_line import LineLost
from sublet.train.link.following import at_once
from sublet.train.link.membership import Membership
from sublet.train.state.state import Progress
from sublet.wire.messages import Damaged, Saved, SaveFailed


class Wires:
    """Between a process and its objects: requests that fail, answers that are lost, times that are told otherwise."""

    def __init__(self, inner):
        self._inner, self.uri = inner, inner.uri
        self.fails = self.loses = None  # predicates of (order, key)
        self.ages_s = {}  # folder -> so much older
        self.orders = []

    def __getattr__(self, name):
        def ask(key="", *args, **facts):
            self.orders.append((name, key))
            if self.fails is not None and self.fails(name, key):
                raise StoreFailed(self.uri, "the line is cut", hint="mend it")
            if name == "put":  # a store in memory would keep the buffer itself, which the next save fills anew
                args = tuple(map(bytes, args))
            answer = getattr(self._inner, name)(key, *args, **facts)
            if self.loses is not None and self.loses(name, key):
                raise StoreFailed(self.uri, "no answer", hint="ask again")
            if name == "list":
                ages = [(found, self.ages_s.get(found.key.rpartition("/")[0], 0.0)) for found in answer]
                answer = [replace(found, changed_s=found.changed_s - age_s) for found, age_s in ages]
            return answer

        return ask


class Careless:
    """A store that takes what it is given, under some conditions or all."""

    def __init__(self, inner, *ignored):
        self._inner, self._ignored, self.uri = inner, ignored, inner.uri

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def put(self, key, content, **conditions):
        kept = {name: value for name, value in conditions.items() if name not in self._ignored}
        return self._inner.put(key, bytes(content), **kept)


@pytest.mark.parametrize(("ignored", "condition"), [("new", "If-None-Match"), ("over", "If-Match")])
def test_a_store_that_does_not_honour_conditions_is_told_each_time_and_commits_nothing(ignored, condition):
    objects = Careless(RemoteObjects("memory://job", MemoryStore()), ignored)
    for generation in (1, 2):
        kept = Checkpoints(Bucket(objects), keep=2, writer="w", generation=generation)
        with kept, pytest.raises(CheckpointFailed, match=rf"does not honour conditions \({condition}\)"):
            kept.save(3, state(3), {}).wait()
        assert HEAD not in [found.key for found in objects.list()]


@pytest.fixture
def objects():
    return Wires(RemoteObjects("memory://job", MemoryStore()))


@pytest.fixture
def kept(objects):
    with Checkpoints(Bucket(objects), keep=2, writer="w", generation=1) as kept:
        yield kept


def state(value):
    return {"w": torch.full((1000,), float(value)), "empty": torch.zeros(0), "lr": 0.1}


def value(loaded):
    return loaded.state["w"][0].item()


def folders(objects):
    return sorted({found.key.rpartition("/")[0] for found in objects.list()} - {""})


def test_a_state_comes_back_to_the_bit_and_the_head_says_where_it_is(kept, objects):
    torch.manual_seed(0)
    saved = {"w": torch.randn(5000), "t": (1, [2.5, None], {"x": torch.arange(3)})}
    kept.save(3, saved, {"world": 2}).wait()
    loaded = kept.newest()
    assert torch.equal(loaded.state["w"], saved["w"])
    assert torch.equal(loaded.state["t"][2]["x"], torch.arange(3))
    assert loaded.meta["world"] == 2
    assert step_of(loaded.path) == 3
    head = json.loads(objects.get(HEAD).data)["head"]
    assert (head["generation"], head["step"]) == (1, 3)
    assert f"memory://job/{head['manifest']}" == f"{loaded.path}/MANIFEST.json"


def test_a_failure_of_the_store_is_in_the_pending_one_and_the_next_save_commits(kept, objects):
    kept.save(1, state(1), {}).wait()
    objects.fails = lambda order, key: order == "put"
    failed = kept.save(2, state(2), {})
    with pytest.raises(StoreFailed, match="the line is cut"):
        failed.wait()
    objects.fails = None
    assert kept.newest().step == 1
    kept.save(3, state(3), {}).wait()
    assert value(kept.newest()) == 3.0


@pytest.mark.parametrize("step", [1, 2])
def test_a_commit_whose_answer_is_lost_stays_if_it_was_done(kept, objects, step):
    for before in range(1, step):
        kept.save(before, state(before), {}).wait()
    objects.loses = lambda order, key: (order, key) == ("put", HEAD)
    with pytest.raises(StoreFailed, match="no answer"):
        kept.save(step, state(step), {}).wait()
    objects.loses = None
    assert value(kept.newest()) == step  # its objects were not cleared away
    kept.save(step + 1, state(step + 1), {}).wait()
    assert value(kept.newest()) == step + 1


def test_a_move_that_was_done_and_looks_overtaken_is_seen_to_be_our_own(objects):
    register = Register(objects)
    register.move(lambda head: replace(head, generation=1))
    put, lost = objects._inner.put, []

    def twice(key, content, **facts):  # the client asks again, since no answer came
        put(key, content, **facts)
        lost.append(key)
        raise Overtaken("memory://job", key)

    objects._inner.put = twice
    moved = register.move(lambda head: None if head.generation >= 2 else replace(head, generation=2))
    assert (moved.generation, lost) == (2, [HEAD])


def test_a_commit_that_looks_overtaken_and_is_in_a_newer_head_stands(kept, objects):
    kept.save(1, state(1), {}).wait()
    put = objects._inner.put

    def overtaken(key, content, **facts):
        done = put(key, content, **facts)
        if key != HEAD:
            return done
        objects._inner.put = put
        Bucket(objects).announce(2)  # before the client, which heard no answer, asks again
        raise Overtaken("memory://job", key)

    objects._inner.put = overtaken
    assert kept.save(2, state(2), {}).wait().step == 2
    assert value(kept.newest()) == 2.0
    with pytest.raises(StaleWriter):
        kept.save(3, state(3), {}).wait()


def test_a_manifest_that_looks_written_already_is_ours_or_it_is_refused(objects):
    bucket = Bucket(objects)
    with bucket.open_staging(1) as staging:
        objects.put(f"{staging.name}/MANIFEST.json", b"{}")
        assert staging.write("MANIFEST.json", memoryview(b"{}"))
        with pytest.raises(Overtaken):
            staging.write("MANIFEST.json", memoryview(b"[]"))


def test_nobody_is_asked_how_old_the_last_commit_is_nor_about_a_generation_that_is_announced(kept, objects):
    kept.save(1, state(1), {}).wait()
    objects.orders.clear()
    assert kept._kept.commit_age_s() < 3600.0
    kept.fence(1)
    assert objects.orders == []


def test_a_save_gives_few_orders_and_the_head_is_read_by_none_of_them_but_the_sweep(kept, objects):
    kept.save(1, state(1), {}).wait()
    objects.orders.clear()
    kept.save(2, state(2), {}).wait()
    kept.close()
    assert [order for order, key in objects.orders if order == "put"] == ["put"] * 4  # data, tree, manifest, HEAD
    assert [order for order, key in objects.orders if key == HEAD] == ["put", "get"]


def test_objects_that_are_gone_before_the_commit_make_it_fail(objects):
    bucket = Bucket(objects)
    bucket.announce(1)
    with bucket.open_staging(1) as staging:
        staging.write("tree.json", memoryview(b"x"))
        staging.write("MANIFEST.json", memoryview(b"x"))
        objects.delete([f"{staging.name}/tree.json"])
        with pytest.raises(CheckpointFailed, match="not all of it is there"):
            bucket.commit(staging, 1, 1)
    assert Bucket(objects).steps() == []


@pytest.mark.parametrize("spoil", [lambda text: text[:50], lambda text: text.replace(b'"turn":', b'"turn":1'), None])
def test_a_head_that_is_damaged_or_gone_is_made_up_from_the_manifests(kept, objects, spoil):
    for step in (1, 2):
        kept.save(step, state(step), {}).wait()
    text = objects.get(HEAD).data
    objects.delete([HEAD]) if spoil is None else objects.put(HEAD, spoil(text))
    other = Checkpoints(Bucket(objects), keep=2, writer="x", generation=2)
    assert value(other.newest()) == 2.0
    other.save(3, state(3), {}).wait()
    assert [entry.step for entry in Head.from_json(objects.get(HEAD).data).kept] == [3, 2]
    with pytest.raises(StaleWriter):
        kept.save(4, state(4), {}).wait()
    other.close()


def test_a_made_up_head_does_not_take_what_a_stale_writer_left(kept, objects):
    kept.save(1, state(1), {}).wait()
    bucket = Bucket(objects)
    bucket.announce(1)
    with bucket.open_staging(9) as staging:  # never committed, and never cleared away
        staging.asked = True
        source = kept.newest().path.rpartition("/")[2]
        for name in ("data-0000.bin", "tree.json"):
            staging.write(name, memoryview(objects.get(f"{source}/{name}").data))
        text = objects.get(f"{source}/MANIFEST.json").data
        from sublet.train.checkpoint.manifest import Manifest

        manifest = replace(Manifest.from_json(text), step=9)
        staging.write("MANIFEST.json", memoryview(manifest.to_json()))
    with Checkpoints(Bucket(objects), keep=2, writer="x", generation=2) as other:
        assert other.newest().step == 1
        other.save(2, state(2), {}).wait()
        objects.delete([HEAD])
        assert other.newest().step == 2


def test_an_object_of_somebody_elses_is_not_written_over(objects):
    objects.put(HEAD, b"ref: refs/heads/main\n")
    with Checkpoints(Bucket(objects), writer="w", generation=1) as kept:
        with pytest.raises(CheckpointFailed, match="a prefix of its own"):
            kept.save(1, state(1), {}).wait()
        with pytest.raises(CheckpointFailed, match="a prefix of its own"):
            kept.newest()
    assert objects.get(HEAD).data == b"ref: refs/heads/main\n"


def test_a_head_of_a_later_version_is_not_written_over(objects):
    text = Head().to_json().replace(b'"schema":1', b'"schema":2')
    objects.put(HEAD, text)
    with pytest.raises(CheckpointFailed, match="install the version"):
        Bucket(objects).steps()


@pytest.mark.parametrize(
    ("generation", "age_s", "goes"),
    [(1, 3599.0, False), (1, 3601.0, True), (2, 3601.0, False), (2, 86_401.0, True)],
)
def test_what_a_dead_writer_left_goes_when_it_is_old_by_the_clock_of_the_store(objects, generation, age_s, goes):
    left = f"step-5.gen-{generation}.abcdef"
    for name in (f"{left}/tree.json", "notes/mine.txt", "step-5/mine.txt"):
        objects.put(name, b"x")
    objects.ages_s = {left: age_s, "notes": 1e6, "step-5": 1e6}
    with Checkpoints(Bucket(objects), writer="w", generation=2) as kept:
        kept.save(1, state(1), {}).wait()
    assert (left in folders(objects)) is not goes
    assert {"notes", "step-5"} <= set(folders(objects))


def test_one_that_is_committed_or_set_aside_is_never_too_old(kept, objects):
    kept.save(1, state(1), {}).wait()
    Bucket(objects).set_aside([1])
    kept.save(2, state(2), {}).wait()
    objects.ages_s = dict.fromkeys(folders(objects), 1e6)
    kept.save(3, state(3), {}).wait()
    kept.close()
    assert [step_of(folder) for folder in folders(objects)] == [1, 2, 3]


# ------------------------------------------------------------------------------------------------ the saver over it


@pytest.fixture
def saver(objects, monkeypatch):
    monkeypatch.setattr("sublet.train.checkpoint.saving.open_store", lambda place, wall: Bucket(objects, wall=wall))
    told = []
    saver = Saver("s3://bucket/job", "job.1.0", told.append)
    saver.told = told
    saver.opened(1)
    yield saver
    saver.close()


def test_a_store_that_fails_stops_no_training_and_is_told(saver, objects):
    saver.save(state(1), Progress(samples=8, batch=4, steps=1))
    objects.fails = lambda order, key: True
    saver.save(state(2), Progress(samples=8, batch=4, steps=2))
    saver.opened(2)  # a new group, and the fence cannot be moved
    objects.fails = None
    saver.save(state(3), Progress(samples=8, batch=4, steps=3))
    assert [type(message) for message in saver.told] == [Saved, SaveFailed, SaveFailed, Saved]
    assert "the line is cut" in saver.told[1].why
    assert Bucket(objects).announced() == 2


def test_a_store_that_cannot_be_asked_is_not_taken_for_an_empty_one(saver, objects):
    saver.save(state(1), Progress(samples=8, batch=4, steps=1))
    objects.fails = lambda order, key: True
    with pytest.raises(StoreFailed):
        saver.newest()
    with pytest.raises(
        LineLost, match="the line is cut"
    ):  # the process ends, and is started again: no fault of its own
        at_once(Membership(None, None, saver, torch.device("cpu")).load())


def test_a_load_that_takes_long_is_told_as_work(saver):
    line = SimpleNamespace(script_s=None, wall=SimpleNamespace(monotonic=lambda: 7.0))
    seen = []
    saver.newest = lambda: seen.append(line.script_s)
    members = Membership(None, None, saver, torch.device("cpu"))
    members.following.line = line
    assert at_once(members.load()) is False
    assert (seen, line.script_s) == ([7.0], None)


def test_nobody_waits_to_hear_how_old_a_commit_is_that_cannot_be_asked_for(objects):
    objects.fails = lambda order, key: True
    with Checkpoints(Bucket(objects), writer="w", generation=1) as kept:
        objects.orders.clear()
        assert kept._kept.commit_age_s() == math.inf
        assert objects.orders == []


def test_when_all_are_damaged_they_are_set_aside_if_that_was_decided(saver, objects, monkeypatch):
    for step in (1, 2):
        saver.save(state(step), Progress(samples=8, batch=4, steps=step))
    for found in objects.list():
        if found.key.endswith(".bin"):
            objects.put(found.key, b"x" * found.size)
    with pytest.raises(Exception, match="damaged"):
        saver.newest()
    assert isinstance(saver.told[-1], Damaged)
    assert all(path.startswith("memory://job/step-") for path in saver.told[-1].paths)
    monkeypatch.setenv("SUBLET_START_OVER", "1")
    assert saver.newest() is None
    assert Bucket(objects).steps() == []

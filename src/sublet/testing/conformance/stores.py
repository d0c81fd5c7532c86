"""Conformance of places for checkpoints (`sublet.train.checkpoint.store`): nothing torn, nothing stale, nothing lost.

A process that saves is stopped before and after each of its orders, or another of a newer generation does all that it
does just there. Inherit `StoreSuite` and give it a rig: how a process opens the store, and how a bit in it flips.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import pytest
from hypothesis import strategies as st

from sublet.errors import DamagedCheckpoint, StaleWriter
from sublet.testing.conformance import DrawingSuite
from sublet.testing.interrupted import Orders, Stopped
from sublet.train.checkpoint.manifest import TREE, read_file, read_manifest, write_files
from sublet.train.checkpoint.store import Store

DATA = "data-0000.bin"
KEEP = 2
ENDLESS = 1_000  # orders; no save has as many
Tag = tuple[int, str]  # a step, and whose it is


class StoreRig(Protocol):
    """One empty store."""

    def open(self, orders: Orders) -> Store:
        """As a new process has it, which gives these orders."""

    def flip(self, step: int) -> None:
        """A bit of its tree becomes another."""


class Life(NamedTuple):
    """The life of one writer: it loads, saves some steps, and ends in the middle of another save, or not."""

    newer: bool  # its generation is above the one before
    saves: int
    dies_at: int | None  # in the save after these
    rots: bool  # what it saved last is damaged afterwards


LIVES = st.lists(
    st.builds(
        Life,
        newer=st.booleans(),
        saves=st.integers(1, 3),
        dies_at=st.none() | st.integers(1, 60),
        rots=st.booleans(),
    ),
    min_size=2,
    max_size=4,
)


def save(store: Store, tag: Tag, generation: int, keep: int = KEEP) -> None:
    """As `Checkpoints` does it: two files that say whose they are, so that a mixture is seen."""
    step, whose = tag
    store.announce(generation)
    contents = {DATA: memoryview(f"{step} {whose}".encode() * 50), TREE: memoryview(f"{step} {whose}".encode())}
    with store.open_staging(step) as staging:
        write_files(staging, contents, step=step, generation=generation, writer=whose, meta={})
        store.commit(staging, step, generation)
    store.collect(keep=keep, just_committed=step)
    store.sweep()


def read(store: Store, step: int) -> Tag:
    """All of it; DamagedCheckpoint if it is not whole, and an assertion if it is a mixture."""
    folder = store.folder(step)
    manifest = read_manifest(folder, step)
    found = {}
    for file in manifest.files:
        memory = bytearray(file.size)
        read_file(folder, file, [(0, memoryview(memory))])
        found[file.name] = bytes(memory).decode()
    number, whose = found[TREE].split(" ")
    assert found[DATA] == found[TREE] * 50
    assert (int(number), whose) == (manifest.step, manifest.writer)
    return manifest.step, manifest.writer


def load(store: Store) -> tuple[Tag | None, int]:
    """The newest that is whole, and how many above it are not."""
    skipped = 0
    for step in store.steps():
        try:
            return read(store, step), skipped
        except DamagedCheckpoint:
            store.pass_over(step)
            skipped += 1
    return None, skipped


class StoreSuite(DrawingSuite):
    """Laws of a place for checkpoints."""

    moments: ClassVar[int] = 1  # every so many of them a process is stopped

    def make_rig(self) -> StoreRig:
        """An empty one."""
        pytest.fail(f"{type(self).__name__}: say make_rig()")

    @pytest.fixture
    def rig(self) -> StoreRig:
        return self.make_rig()

    # ------------------------------------------------------------------------------------------------ one writer

    def test_what_was_saved_last_is_loaded_and_the_highest_step_comes_first(self, rig: StoreRig) -> None:
        store = rig.open(Orders())
        assert load(store) == (None, 0)
        assert store.commit_age_s() == math.inf
        save(store, (0, "a"), 1)
        save(store, (10, "a"), 1)
        save(store, (9, "a"), 1)
        assert store.steps() == [10, 9]
        other = rig.open(Orders())
        assert load(other) == ((10, "a"), 0)
        assert other.commit_age_s() < math.inf
        assert str(other.place_of(10)).startswith(str(other.place))

    def test_as_many_stay_as_are_to_be_kept(self, rig: StoreRig) -> None:
        store = rig.open(Orders())
        for step in range(1, 6):
            save(store, (step, "a"), 1, keep=3)
        assert rig.open(Orders()).steps() == [5, 4, 3]

    def test_a_damaged_one_is_passed_over_and_counts_for_nothing(self, rig: StoreRig) -> None:
        for step in (1, 2, 3):
            save(rig.open(Orders()), (step, "a"), 1, keep=3)
        rig.flip(3)
        store = rig.open(Orders())
        assert load(store) == ((2, "a"), 1)
        rig.flip(2)
        assert load(store) == ((1, "a"), 2)
        save(store, (4, "b"), 2)
        assert [step for step in store.steps() if step not in (2, 3)] == [4, 1]  # two that are whole
        assert load(rig.open(Orders())) == ((4, "b"), 0)

    def test_a_step_that_is_damaged_is_saved_again(self, rig: StoreRig) -> None:
        store = rig.open(Orders())
        save(store, (1, "a"), 1)
        save(store, (2, "a"), 1)
        rig.flip(2)
        other = rig.open(Orders())
        assert load(other) == ((1, "a"), 1)
        save(other, (2, "b"), 2)
        assert load(rig.open(Orders())) == ((2, "b"), 0)

    def test_what_is_set_aside_is_in_nobodys_way(self, rig: StoreRig) -> None:
        store = rig.open(Orders())
        save(store, (7, "a"), 1)
        rig.flip(7)
        assert load(store) == (None, 1)
        assert str(store.set_aside([7])).startswith(str(store.place))
        assert load(rig.open(Orders())) == (None, 0)
        store.set_aside([7])  # another was quicker
        save(store, (1, "b"), 2)
        assert load(rig.open(Orders())) == ((1, "b"), 0)

    # ------------------------------------------------------------------------------------------------ stopped

    def test_a_save_that_is_stopped_anywhere_leaves_the_last_or_the_one_before(self) -> None:
        outcomes = set()
        for at in range(1, ENDLESS, self.moments):
            rig = self.make_rig()
            first = rig.open(Orders())
            save(first, (1, "a"), 1)
            save(first, (2, "a"), 1)
            orders = Orders(at)
            try:
                save(rig.open(orders), (3, "b"), 2)
            except Stopped:
                pass
            else:
                break
            found, skipped = load(rig.open(Orders()))
            assert found in ((2, "a"), (3, "b")), f"stopped at moment {at}"
            assert not skipped
            outcomes.add(found)
            after = rig.open(Orders())
            save(after, (4, "c"), 3)
            assert load(rig.open(Orders())) == ((4, "c"), 0)
            assert [read(after, step) for step in after.steps()] == [(4, "c"), found]
        else:
            pytest.fail("a save has no end")
        assert outcomes == {(2, "a"), (3, "b")}

    # ------------------------------------------------------------------------------------------------ two writers

    def test_none_of_an_older_generation_commits_after_the_announcement(self, rig: StoreRig) -> None:
        old, new = rig.open(Orders()), rig.open(Orders())
        save(old, (1, "old"), 1)
        new.fence(5)
        assert rig.open(Orders()).announced() == 5
        with pytest.raises(StaleWriter) as caught:
            save(old, (2, "old"), 4)
        assert caught.value.announced == 5
        assert load(new) == ((1, "old"), 0)
        old.fence(5)  # the same: both may
        save(old, (2, "old"), 5)
        save(new, (3, "new"), 5)
        assert load(old) == ((3, "new"), 0)

    def test_wherever_a_newer_writer_comes_in_the_stale_one_never_wins(self) -> None:
        ends = set()
        for at in range(1, ENDLESS, self.moments):
            rig = self.make_rig()
            first = rig.open(Orders())
            save(first, (1, "a"), 1)
            save(first, (2, "a"), 1)
            newer = _Newer(rig)
            try:
                save(rig.open(Orders(at, newer.takes_over)), (3, "old"), 2)
                lost = False
            except StaleWriter:
                lost = True
            if not newer.saved:
                break
            loaded = newer.loaded
            assert loaded in ((2, "a"), (3, "old"))
            assert lost == (loaded == (2, "a")), (
                f"at moment {at}: what it committed was there to be loaded, or it is stale"
            )
            store = rig.open(Orders())
            assert load(store) == ((loaded[0] + 1, "new"), 0)
            assert [read(store, step) for step in store.steps()][1] == loaded
            ends.add(lost)
        else:
            pytest.fail("a save has no end")
        assert ends == {True, False}

    # ------------------------------------------------------------------------------------------------ many lives

    def test_life_after_life_the_newest_that_is_whole_is_loaded(self) -> None:
        self.for_examples(self._live, LIVES)

    def _live(self, lives: Sequence[Life]) -> None:
        rig, generation = self.make_rig(), 1
        sure: list[
            Tag
        ] = []  # committed and whole, as far as a simple twin knows; those that must be there are the last
        doubt: Tag | None = None  # of a process that ended in its save
        for number, life in enumerate(lives):
            generation += life.newer
            store = rig.open(Orders())
            found, _ = load(store)
            assert found in {sure[-1] if sure else None, doubt}, (found, sure, doubt)
            if found is not None and found == doubt:
                sure.append(found)
            doubt = None
            for _ in range(life.saves):
                sure.append((1 + (sure[-1][0] if sure else 0), f"w{number}"))
                save(store, sure[-1], generation)
                assert load(rig.open(Orders()))[0] == sure[-1]
            if life.rots and len(sure) > 1 and sure[-2][0] in store.steps():
                rig.flip(sure.pop()[0])
            if life.dies_at is not None:
                doubt = ((sure[-1][0] if sure else 0) + 5, f"w{number}-dying")
                try:
                    save(rig.open(Orders(life.dies_at)), doubt, generation)
                except Stopped:
                    pass
                else:
                    sure.append(doubt)


class _Newer:
    """A writer of a higher generation: it announces itself, loads, and saves the next step."""

    def __init__(self, rig: StoreRig) -> None:
        self._rig, self.saved, self.loaded = rig, False, (0, "")

    def takes_over(self) -> None:
        store = self._rig.open(Orders())
        store.fence(3)
        found, skipped = load(store)
        assert found is not None
        assert not skipped
        self.loaded = found
        save(store, (found[0] + 1, "new"), 3)
        self.saved = True

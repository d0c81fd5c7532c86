"""The shipped way of committing on a disk that is cut before every order: never torn, and never less than was told.

What the disk of this machine makes of the same orders is in test_checkpoint_power_cut.py and test_checkpoint_kills.py.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from sublet.errors import DamagedCheckpoint, StaleWriter
from sublet.train.checkpoint.checkpoints import Checkpoints, newest
from sublet.train.checkpoint.commit import Directory
from sublet.train.checkpoint.manifest import TREE, read_file, read_manifest, write_files
from sublet_lab.torn_disk import PowerCut, TornDisk

HOME = Path("/job/checkpoints")
KILLS = 1_000
DISKS_PER_CUT = 4


def content_of(step):
    return bytes(f"all of step {step}" * 20, "ascii")


def save(disk, step, *, generation=1, keep=2):
    """As Checkpoints does it, without a state of torch: stage, commit, throw away what is too old."""
    kept = Directory(HOME, disk=disk)
    kept.announce(generation)
    with kept.open_staging(step) as staging:
        write_files(
            staging,
            {TREE: memoryview(content_of(step))},
            step=step,
            generation=generation,
            writer="w",
            meta={},
        )
        kept.commit(staging, step, generation)
    kept.collect(keep=keep, just_committed=step)
    kept.sweep()


def loaded_from(disk):
    """The newest that is whole, and how many damaged ones were above it; its content must be what was saved."""
    kept, skipped = Directory(HOME, disk=disk), 0
    for step in kept.steps():
        try:
            manifest = read_manifest(kept.folder(step), step)
            memory = bytearray(manifest.files[0].size)
            read_file(kept.folder(step), manifest.files[0], [(0, memoryview(memory))])
        except DamagedCheckpoint:
            skipped += 1
        else:
            assert bytes(memory) == content_of(step)
            return step, skipped
    return None, skipped


def disk_with(*steps):
    disk = TornDisk()
    for step in steps:
        save(disk, step)
    return disk.after_kill()


def save_until_cut(disk, *steps):
    """Which of these were acknowledged."""
    told = []
    try:
        for step in steps:
            save(disk, step)
            told.append(step)
    except PowerCut:
        pass
    return told


@pytest.fixture(scope="module")
def before():
    return disk_with(1, 2, 3)


@pytest.fixture(scope="module")
def orders(before):
    disk = before.after_kill()
    save(disk, 4)
    return disk.orders


def test_there_are_boundaries_of_every_part_of_a_save(before, orders):
    assert orders > 15  # staging, two files of three orders each, commit, hint, collect of three names, sweep
    assert Directory(HOME, disk=before).steps() == [3, 2]


def test_a_writer_killed_before_any_order_leaves_the_old_or_the_new_and_nothing_in_the_way(before, orders):
    seen = []
    for cut in range(orders):
        disk = before.after_kill()
        disk.cut_at, disk.tears = cut, random.Random(cut)
        assert save_until_cut(disk, 4) == []
        found = disk.after_kill()
        step, skipped = loaded_from(found)
        seen.append(step)
        assert skipped == 0
        save(found, 5)
        assert loaded_from(found) == (5, 0)
        assert found.names(HOME / "staging") == []
    assert seen == sorted(seen)  # there is one commit point
    assert set(seen) == {3, 4}


def test_a_power_cut_before_any_order_loses_nothing_that_was_told_and_leaves_nothing_torn(before, orders):
    durable = before.after_power_cut(None)
    assert loaded_from(durable) == (3, 0)
    for cut in range(2 * orders):
        disk = durable.after_kill()
        disk.cut_at, disk.tears = cut, random.Random(cut)
        told = save_until_cut(disk, 4, 5)
        for case in range(DISKS_PER_CUT):
            found = disk.after_power_cut(random.Random(f"{cut} {case}") if case else None)
            step, _ = loaded_from(found)
            assert step is not None, (cut, case)
            assert step >= max(told, default=3), (cut, case)
            save(found, 6)
            assert loaded_from(found)[0] == 6, (cut, case)


def test_1000_kills_at_random_orders_of_random_saves_never_load_what_is_torn():
    disk, rng, told = TornDisk(), random.Random(14), None
    step = 0
    for _ in range(KILLS):
        disk.cut_at, disk.tears = disk.orders + rng.randrange(60), rng
        begun = step
        try:
            while True:
                begun = step + 1
                save(disk, begun)
                step = told = begun
        except PowerCut:
            pass
        disk = disk.after_power_cut(rng) if rng.random() < 0.5 else disk.after_kill()
        found, _ = loaded_from(disk)
        assert found is None or found <= begun
        assert told is None or found >= told
        step = found or 0
    assert step > 100


def test_a_generation_that_was_announced_before_a_power_cut_is_announced_after_it(before):
    disk = before.after_kill()
    Directory(HOME, disk=disk).announce(7)
    found = disk.after_power_cut(None)
    assert Directory(HOME, disk=found).announced() == 7
    with pytest.raises(StaleWriter):
        save(found, 4, generation=6)


@pytest.mark.parametrize("skip", [1, 2, 3, 4])
def test_the_torn_disk_would_notice_a_missing_sync(monkeypatch, skip):
    """1 and 2: of the folder that the rename is in, and of the staged one; 3 and 4: of the contents."""
    disk = disk_with().after_kill()
    if skip <= 2:
        real = disk.sync_folder
        is_lost = {1: lambda path: path == HOME, 2: lambda path: path.parent.name == "staging"}[skip]
        monkeypatch.setattr(disk, "sync_folder", lambda path: None if is_lost(path) else real(path))
    else:
        real = disk.create
        name = {3: TREE, 4: "MANIFEST.json"}[skip]

        def create(path):
            draft = real(path)
            if path.name == name:
                draft.sync = lambda: None
            return draft

        monkeypatch.setattr(disk, "create", create)
    save(disk, 1)
    assert loaded_from(disk.after_power_cut(None))[0] is None


def test_a_state_of_torch_takes_the_same_way(before):
    """Checkpoints itself over this disk, cut before every order: what it loads is whole, and what it told is there."""
    del before
    first = TornDisk()
    with Checkpoints(HOME, keep=2, writer="w", generation=1, disk=first) as kept:
        for step in (1, 2):
            kept.save(step, {"w": torch.full((30,), float(step))}, {}).wait()
    told, whole = 0, first.after_power_cut(None)
    for cut in range(100):
        disk = whole.after_kill()
        disk.cut_at, disk.tears = cut, random.Random(cut)
        try:
            with Checkpoints(HOME, keep=2, writer="w", generation=1, disk=disk) as kept:
                pending = kept.save(3, {"w": torch.full((30,), 3.0)}, {})
        except PowerCut:  # while it was opened
            committed = False
        else:
            committed = pending.error is None
        found = newest(HOME, disk=disk.after_power_cut(random.Random(cut)))
        assert found is not None
        assert found.step >= (3 if committed else 2)
        assert torch.equal(found.state["w"], torch.full((30,), float(found.step)))
        told += committed
    assert told > 50  # the rest of the cuts came after its last order

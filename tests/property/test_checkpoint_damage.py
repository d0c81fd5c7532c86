"""A thousand ways to damage the newest checkpoint: each is found, and the one before is used."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pytest
import torch

from sublet.errors import DamagedCheckpoint, InvalidValue
from sublet.train.checkpoint import snapshot as checkpoint_snapshot
from sublet.train.checkpoint.checkpoints import Checkpoints, newest
from sublet.train.checkpoint.disk import DiskFolder
from sublet.train.checkpoint.manifest import Manifest, NamedFile, verify
from sublet.train.checkpoint.snapshot import read_state

CASES = 1_000
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - an fsync costs nothing there


def state_of(step):
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {f"layer{i}": torch.randn(31, generator=generator) for i in range(5)},
        "optimizer": {"step": step, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
    }


@pytest.fixture(scope="module")
def committed():
    """Steps 1 and 2, three data files each, as bytes that can be put back."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=MEMORY) as name:
        patch.setattr(checkpoint_snapshot, "SEGMENT_BYTES", 400)
        with Checkpoints(Path(name), writer="w", generation=0) as kept:
            for step in (1, 2):
                kept.save(step, state_of(step), {"cursor": 1_000 * step}).wait()
        yield Path(name), {path: path.read_bytes() for path in Path(name).rglob("step-*/*")}


def bit_flip(rng, files, older):
    path, content = rng.choice(sorted(files.items()))
    at = rng.randrange(len(content))
    path.write_bytes(content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :])


def truncation(rng, files, older):
    path, content = rng.choice(sorted(files.items()))
    path.write_bytes(content[: rng.randrange(len(content))])


def longer(rng, files, older):
    path, content = rng.choice(sorted(files.items()))
    path.write_bytes(content + rng.randbytes(rng.randint(1, 9)))


def missing(rng, files, older):
    rng.choice(sorted(files)).unlink()


def block_of_zeros(rng, files, older):
    path, content = rng.choice(sorted(files.items()))
    at, length = rng.randrange(len(content)), rng.randint(8, 4096)
    zeroed = content[:at] + bytes(len(content[at : at + length])) + content[at + length :]
    path.write_bytes(zeroed if zeroed != content else b"")


def no_manifest_to_speak_of(rng, files, older):
    manifest = next(path for path in files if path.name == "MANIFEST.json")
    manifest.write_bytes(rng.choice([b"", b"\0" * 512, b"{}", b"[]", b"null", b'{"manifest": 3}', b"\xff\xfe"]))


def manifest_of_another_step(rng, files, older):
    next(path for path in files if path.name == "MANIFEST.json").write_bytes(older["MANIFEST.json"])


def all_of_another_step(rng, files, older):
    for path in files:
        path.write_bytes(older[path.name])


def one_file_of_another_step(rng, files, older):
    data = [path for path in sorted(files) if files[path] != older[path.name]]
    path = rng.choice(data)
    path.write_bytes(older[path.name])


def two_files_swapped(rng, files, older):
    one, other = rng.sample([path for path in sorted(files) if path.name.startswith("data")], 2)
    one.write_bytes(files[other])
    other.write_bytes(files[one])


def another_fact_in_the_manifest(rng, files, older):
    path = next(path for path in files if path.name == "MANIFEST.json")
    facts = json.loads(files[path])
    facts["manifest"]["meta"]["cursor"] += rng.randint(1, 9)
    path.write_text(json.dumps(facts))


def a_directory_in_its_place(rng, files, older):
    path = rng.choice(sorted(files))
    path.unlink()
    path.mkdir()


DAMAGES = (
    *[bit_flip] * 6,
    *[truncation] * 3,
    longer,
    missing,
    block_of_zeros,
    no_manifest_to_speak_of,
    manifest_of_another_step,
    all_of_another_step,
    one_file_of_another_step,
    two_files_swapped,
    another_fact_in_the_manifest,
    a_directory_in_its_place,
)


def put_back(contents):
    for path, content in contents.items():
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)


def test_a_whole_newest_checkpoint_is_the_one_that_is_loaded(committed):
    directory, contents = committed
    loaded = newest(directory)
    assert (loaded.step, loaded.meta["cursor"], loaded.skipped) == (2, 2_000, [])
    assert len([path for path in contents if path.parent.name == "step-2"]) >= 4
    assert_equal(loaded.state, state_of(2))


def test_a_thousand_random_damages_are_all_found_and_the_one_before_is_used(committed):
    directory, contents = committed
    files = {path: content for path, content in contents.items() if path.parent.name == "step-2"}
    older = {path.name: content for path, content in contents.items() if path.parent.name == "step-1"}
    for case in range(CASES):
        rng = random.Random(case)
        damage = rng.choice(DAMAGES)
        damage(rng, files, older)
        loaded = newest(directory)
        told = f"case {case}, {damage.__name__}"
        assert loaded is not None, told
        assert loaded.step == 1, told
        assert loaded.meta["cursor"] == 1_000, told
        assert_equal(loaded.state, state_of(1))
        assert [path.name for path, _ in loaded.skipped] == ["step-2"], told
        assert loaded.skipped[0][1], told
        with pytest.raises(DamagedCheckpoint):
            verify(DiskFolder(directory / "step-2"), 2)
        put_back(files)
    assert newest(directory).step == 2


def test_with_everything_damaged_nothing_is_loaded_and_the_reasons_are_told(committed):
    directory, contents = committed
    for path in contents:
        if path.name == "tree.json":
            path.write_bytes(b"")
    with Checkpoints(directory, writer="w", generation=0) as kept:
        assert kept.newest() is None
        assert [path.name for path, _ in kept.skipped] == ["step-2", "step-1"]
    put_back(contents)


@pytest.mark.parametrize(
    "tree",
    [
        b"not JSON",
        b'{"tensors":[],"root":3}',  # the state is no dict
        b'{"tensors":[],"root":{"dict":[["w",{"tensor":0}]]}}',  # no such tensor
        b'{"tensors":[],"root":{"__reduce__":["os.system","true"]}}',
        b'{"tensors":[["object",[4],0,0]],"root":{"dict":[]}}',
        b'{"tensors":[["float32",[4],7,0]],"root":{"dict":[]}}',  # no such file
        b'{"tensors":[["float32",[1000000000000],0,0]],"root":{"dict":[]}}',  # beyond the end
        b'{"tensors":[["float32",[-1,-31],0,0]],"root":{"dict":[]}}',
        b'{"tensors":[["float32",[20],0,0],["float32",[20],0,0]],"root":{"dict":[]}}',  # one over the other
        b'{"tensors":[["float32",[4],0,4]],"root":{"dict":[]}}',  # not on a border
        b'{"tensors":[],"root":' + b'{"list":[' * 5_000 + b"]}" * 5_000 + b"}",
    ],
)
def test_files_made_up_with_correct_digests_run_no_code_and_are_refused(tree, tmp_path):
    folder, files = DiskFolder(tmp_path), {"data-0000.bin": bytes(124), "tree.json": tree}
    named = [
        NamedFile(name=name, size=len(content), sha256=folder.write(name, memoryview(content)))
        for name, content in files.items()
    ]
    manifest = Manifest(step=5, generation=0, writer="w", meta={}, files=tuple(named))
    folder.write("MANIFEST.json", memoryview(manifest.to_json()))
    verify(folder, 5)  # the digests are right
    with pytest.raises(DamagedCheckpoint, match=r"tree\.json"):
        read_state(folder, 5)


@pytest.mark.parametrize("name", ["../step-1/tree.json", "/etc/passwd", "data-0000.bin/../x", "tree.json\n", ""])
def test_a_manifest_cannot_name_a_file_elsewhere(name):
    with pytest.raises(InvalidValue, match="name"):
        NamedFile(name=name, size=1, sha256="")


def assert_equal(one, other):
    assert one["optimizer"] == other["optimizer"]
    assert all(torch.equal(one["model"][name], tensor) for name, tensor in other["model"].items())

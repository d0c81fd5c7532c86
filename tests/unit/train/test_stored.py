"""Samples where they are: each once in a pass, whoever reads it, and from any sample on."""

from __future__ import annotations

import itertools
import os
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from sublet import train
from sublet.errors import BadInput, InvalidValue
from sublet.machine.objects import Found, Replaced, StoreFailed
from sublet.machine.remote import open_uri
from sublet.train.data.stored import dataset as portions
from sublet.train.data.stored.dataset import FILE, LINE, RECORD, Blocks, ObjectList
from tests.rigs.sizes import examples


def write(folder, contents):
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def numbered(count, first=0):
    return b"".join(number.to_bytes(4, "little") for number in range(first, first + count))


def number_of(record):
    return int.from_bytes(record, "little")


def a_pass(dataset, shard, count):
    return list(dataset._samples(shard, count))


# ------------------------------------------------------------------------------------------- what a shard has


def in_memory(contents):
    found = tuple(Found(name, len(content), 0.0, "t") for name, content in sorted(contents.items()) if content)
    return ObjectList("memory", found), lambda each, start, stop: contents[each.key][start:stop]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=8), min_size=1),
    st.integers(1, 7),
    st.integers(1, 12),
    st.integers(1, 8),
    st.booleans(),
)
def test_each_line_is_in_one_shard_wherever_blocks_end(texts, shards, block, more, ends):
    contents = {str(at): b"\n".join(lines) + (b"\n" if ends and lines else b"") for at, lines in enumerate(texts)}
    if not any(contents.values()):
        return
    expected = sorted(line for text in contents.values() if text for line in text.removesuffix(b"\n").split(b"\n"))
    with patch.object(portions, "BLOCK_BYTES", block), patch.object(portions, "LINE_BYTES", more):
        manifest, read = in_memory(contents)
        blocks = Blocks(manifest, LINE, 0)
        found = [
            line
            for shard in range(shards)
            for span in blocks.spans(shard, shards, 0, 3)
            for line in blocks.samples(span, read)
        ]
    assert sorted(found) == expected


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 9), st.integers(4, 40), st.booleans())
def test_each_record_is_in_one_shard_and_shards_are_as_long_as_each_other(sizes, shards, block, shuffles):
    firsts = [0, *itertools.accumulate(sizes)]
    contents = {f"{at:02d}": numbered(size, firsts[at]) for at, size in enumerate(sizes)}
    with patch.object(portions, "BLOCK_BYTES", block):
        manifest, read = in_memory(contents)
        blocks = Blocks(manifest, RECORD, 4)
        parts = [
            [
                number_of(record)
                for span in blocks.spans(shard, shards, 0, 3 if shuffles else None)
                for record in blocks.samples(span, read)
            ]
            for shard in range(shards)
        ]
    assert sorted(number for part in parts for number in part) == list(range(firsts[-1]))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if not shuffles:
        assert [number for part in parts for number in part] == list(range(firsts[-1]))


# ------------------------------------------------------------------------------------------- a folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(portions, "BLOCK_BYTES", 64)
    root = tmp_path / "data"
    write(root, {"a/0.bin": numbered(50), "1.bin": numbered(30, 50), ".hidden": b"x", "empty": b"", "2.txt": b"a\nb\n"})
    return root


def records(folder, **more):
    return train.dataset(str(folder), each=RECORD, record_bytes=4, suffix=".bin", decode=number_of, window=20, **more)


def test_passes_are_shuffled_otherwise_and_have_each_sample_once(folder):
    data = records(folder, seed=3)
    assert data.samples == 80
    first = list(itertools.islice(iter(data), 240))
    passes = [first[at : at + 80] for at in (0, 80, 160)]
    assert all(sorted(each) == list(range(80)) for each in passes)
    assert len(set(map(tuple, passes))) == 3
    assert sorted(passes[0][:20]) != list(range(20))
    assert list(itertools.islice(iter(records(folder, shuffle=False)), 80)) == [*range(50, 80), *range(50)]


@pytest.mark.parametrize("given_before", [0, 1, 19, 20, 33, 79, 80, 81, 100])
def test_it_goes_on_at_the_sample(folder, given_before):
    data, expected = records(folder), list(itertools.islice(iter(records(folder)), 130))
    list(itertools.islice(iter(data), given_before))
    other = records(folder)
    other.load_state_dict(data.state_dict())
    assert list(itertools.islice(iter(other), 130 - given_before)) == expected[given_before:]


def test_files_and_lines_are_samples_too(folder):
    assert sorted(a_pass(train.dataset(f"file://{folder}", each=FILE, suffix=".bin"), 0, 1)) == [
        numbered(50),
        numbered(30, 50),
    ]
    lines = train.dataset(folder.as_posix(), each=LINE, suffix=".txt", decode=bytes.decode)
    assert sorted(itertools.islice(iter(lines), 2)) == ["a", "b"]
    assert lines.samples is None


@pytest.mark.parametrize("change", ["replaced", "shorter", "gone"])
def test_a_file_that_changes_while_it_is_in_use_is_an_error_that_names_it(folder, change):
    data, path = records(folder), folder / "a/0.bin"
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(numbered(50 if change == "replaced" else 10, 7))
        os.utime(path, ns=(1, 1))
    with pytest.raises(Replaced, match=r"a/0\.bin"):
        list(itertools.islice(iter(data), 80))


def test_objects_that_changed_since_the_checkpoint_are_named(folder):
    state = records(folder).state_dict()
    write(folder, {"1.bin": numbered(31, 50)})
    with pytest.raises(BadInput, match=r"among 1\.bin"):
        records(folder).load_state_dict(state)
    (folder / "1.bin").unlink()
    with pytest.raises(BadInput, match="gone"):
        records(folder).load_state_dict(state)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"each": "row"}, "each"),
        ({"each": "record"}, "record_bytes"),
        ({"each": "line", "record_bytes": 4}, "record_bytes"),
        ({"each": "record", "record_bytes": 16, "suffix": ".bin"}, r"1\.bin"),
        ({"each": "line", "window": 0}, "window"),
        ({"each": "line", "suffix": ".csv"}, r"\.csv"),
    ],
)
def test_what_cannot_be_read_is_refused_when_it_is_listed(folder, more, word):
    with pytest.raises((InvalidValue, BadInput), match=word):
        train.dataset(str(folder), **more)


@pytest.mark.parametrize("change", [{"window": 9}, {"shuffle": False}, {"seed": 3}], ids=str)
def test_another_order_than_that_of_the_checkpoint_is_refused(folder, change):
    state = records(folder).state_dict()
    usual = {"each": RECORD, "record_bytes": 4, "suffix": ".bin", "window": 20}
    with pytest.raises(BadInput, match=f"{next(iter(change))}="):
        train.dataset(str(folder), **usual | change).load_state_dict(state)


def test_folders_that_are_linked_are_read_and_circles_once(folder, tmp_path):
    write(tmp_path / "far", {"b/3.bin": numbered(5, 80)})
    (folder / "linked").symlink_to(tmp_path / "far")
    (folder / "a" / "up").symlink_to(folder)
    (tmp_path / "far" / "b" / "round").symlink_to(tmp_path / "far")
    assert sorted(itertools.islice(iter(records(folder)), 85)) == list(range(85))
    assert records(folder).samples == 85


def test_a_folder_is_found_as_a_uri_names_it(tmp_path, monkeypatch):
    write(tmp_path, {"my folder/x": b"1", "100%25/x": b"2"})
    monkeypatch.setenv("HOME", str(tmp_path))
    for uri in (f"file://{tmp_path}/my%20folder", f"file://localhost{tmp_path}/my%20folder", "~/my folder"):
        assert a_pass(train.dataset(uri, each=FILE), 0, 1) == [b"1"]
    assert a_pass(train.dataset(f"file://{tmp_path}/100%25", each=FILE), 0, 1) == [b"2"]  # as it stands, if it is there


@pytest.mark.parametrize(
    ("uri", "why"),
    [("{}/gone", "there is no folder"), ("{}/x", "it is a file"), ("file://data/x", "three slashes")],
)
def test_what_is_no_folder_is_told_so(uri, why, tmp_path):
    write(tmp_path, {"x": b"1"})
    with pytest.raises((InvalidValue, BadInput), match=why):
        train.dataset(uri.format(tmp_path), each=FILE)


def seen_by(data, steps, directory, **more):
    model = torch.nn.Linear(1, 1)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.0), []
    options = {"steps": steps, "shards": 2, "checkpoint_dir": directory, "global_batch": 8, **more}
    with train.session(model, optimizer, data, **options) as s:
        for batch in s:
            s.step(model(batch[:, None].float()).mean())
            seen += batch.tolist()
    return seen


def test_a_session_reads_each_sample_once_over_a_restart(folder, tmp_path):
    expected = seen_by(records(folder), 10, tmp_path / "calm")
    assert sorted(expected) == list(range(80))
    found = seen_by(records(folder), 4, tmp_path / "struck")
    found += seen_by(records(folder), 10, tmp_path / "struck")
    assert found == expected


# ------------------------------------------------------------------------------------------- a bucket


@pytest.fixture
def bucket(monkeypatch):
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    from tests.rigs.moto_bucket import a_bucket, environment

    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    uri = a_bucket(f"samples-{os.getpid()}")
    objects = open_uri(uri)  # used in this process, from which the loader's workers are forked
    objects.put("a/0.bin", numbered(50))
    objects.put("1.bin", numbered(30, 50))
    yield uri
    objects.delete([found.key for found in objects.list()])


def test_a_bucket_is_read_in_the_workers_of_a_loader(bucket, tmp_path):
    loader = DataLoader(records(bucket), batch_size=8, num_workers=2)
    assert sorted(seen_by(loader, 10, tmp_path, global_batch=None)) == list(range(80))


def test_an_object_that_is_replaced_or_gone_is_an_error_that_names_it(bucket):
    data, objects = records(bucket), open_uri(bucket)
    objects.put("1.bin", numbered(30, 51))
    with pytest.raises(Replaced, match=r"1\.bin"):
        list(itertools.islice(iter(data), 80))
    data = records(bucket)
    objects.delete(["1.bin"])
    with pytest.raises(Replaced, match=r"1\.bin.*gone"):
        list(itertools.islice(iter(data), 80))


def test_a_bucket_that_is_not_there_is_told_as_the_store_tells_it(bucket):
    with pytest.raises(StoreFailed, match="no-such-bucket"):
        train.dataset("s3://no-such-bucket-here/x", each=LINE)

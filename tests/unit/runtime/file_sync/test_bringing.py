"""What lies in buckets, on a node: all that a URI names, whole, and once."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("obstore")

from obstore.store import MemoryStore

from sublet.errors import InvalidValue
from sublet.machine import remote
from sublet.machine.objects import Found, StoreFailed
from sublet.machine.remote import RemoteObjects, is_remote
from sublet.machine.rng import RNG
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.file_sync import bringing, mirror
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire.messages import StartWorker
from sublet_lab.world.machine import MemoryFiles

BUCKET = {"corpus/a.txt": b"aaa", "corpus/in/b.txt": b"b" * 100, "one.bin": b"one"}


class Objects:
    """Those of a bucket under a prefix; it counts what is read, and may end in the middle of it."""

    MARKS = ()  # empty folders, as some tools make them
    WRITTEN_S = 0.0

    def __init__(self, uri, opened, cut):
        self.uri, self._opened, self._cut = uri, opened, cut
        prefix = uri.removeprefix("s3://bucket").strip("/")
        prefix = f"{prefix}/" if prefix else ""
        self._found = {k.removeprefix(prefix): data for k, data in BUCKET.items() if k.startswith(prefix)}

    def list(self, prefix=""):
        marks = [Found(key, 0, 0.0) for key in self.MARKS]
        return [
            *marks,
            *(Found(key, len(data), self.WRITTEN_S, f"tag of {data!r}") for key, data in sorted(self._found.items())),
        ]

    def look(self, key):
        found = next((each for each in self.list() if each.key == key), None)
        if found is None:
            raise FileNotFoundError(key)
        return found

    def open(self, key):
        if key in self.MARKS:
            raise FileNotFoundError(key)
        if key not in self._found:
            raise StoreFailed(self.uri, "no such object", hint="name another")
        self._opened.append(key)
        data = self._found[key]
        reading = io.BytesIO(data[: len(data) // 2] if self._cut else data)
        found = SimpleNamespace(size=len(data), readinto=reading.readinto)
        return _Reading(found)


class _Reading:
    def __init__(self, found):
        self.found = found

    def __enter__(self):
        return self.found

    def __exit__(self, *_):
        return None


@pytest.fixture
def bucket(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    state = SimpleNamespace(opened=[], cut=False)
    monkeypatch.setattr(bringing, "open_uri", lambda uri: Objects(uri, state.opened, state.cut))
    return state


def test_a_folder_of_a_bucket_and_one_object_are_brought_and_not_twice(bucket, tmp_path, capsys):
    words = ["s3://bucket/corpus", str(tmp_path / "data"), "s3://bucket/one.bin", str(tmp_path / "x.bin")]
    assert bringing.main(words) == 0
    assert (tmp_path / "data" / "in" / "b.txt").read_bytes() == b"b" * 100
    assert (tmp_path / "x.bin").read_bytes() == b"one"
    assert bringing.main(words[:2]) == 0
    assert bucket.opened == ["a.txt", "in/b.txt", "one.bin"]
    assert "(0 files fetched)" in capsys.readouterr().out


def test_folders_that_a_console_made_are_folders(bucket, tmp_path, monkeypatch, capsys):
    # They are listed without their slash, and there is no object of that name.
    monkeypatch.setattr(Objects, "MARKS", ("corpus", "corpus/in", "none", "deep/er"))
    assert bringing.main(["s3://bucket", str(tmp_path)]) == 0, capsys.readouterr().err
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == set(BUCKET)
    assert (tmp_path / "none").is_dir()
    assert (tmp_path / "deep" / "er").is_dir()


def test_what_is_a_file_and_a_folder_at_once_is_told(bucket, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(BUCKET, "corpus/in", b"a file")
    assert bringing.main(["s3://bucket/corpus", str(tmp_path / "data")]) == 1
    told = capsys.readouterr().err
    assert "'in' is a file and a folder there" in told
    assert "next: rename one of them" in told


@pytest.mark.parametrize(("times", "code"), [(1, 0), (mirror.MOST_TRIES, 1)])
def test_an_object_that_is_replaced_while_it_is_fetched_is_read_again(tmp_path, monkeypatch, capsys, times, code):
    """From its beginning, a few times; a file that is half of one and half of the other is never there."""
    objects, left = RemoteObjects("memory://bucket", MemoryStore()), [times]

    class Written(RemoteObjects):
        def open(self, key):
            reading = super().open(key)
            if left[0]:
                left[0] -= 1
                objects.put(key, bytes([left[0]]) * 10_000)
            return reading

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(remote, "MOST_PARTS", 1)
    monkeypatch.setattr(remote, "PART_BYTES", 1000)
    monkeypatch.setattr(bringing, "open_uri", lambda uri: Written(uri, objects._store))
    objects.put("weights", b"first" * 2_000)
    assert bringing.main(["s3://bucket", str(tmp_path / "data")]) == code
    assert left == [0]
    found = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    assert found == ({} if code else {"weights": b"\0" * 10_000})
    assert ("another has written weights while it was read" in capsys.readouterr().err) is bool(code)


def test_an_object_that_was_replaced_by_one_of_the_same_length_is_fetched_again(bucket, tmp_path, monkeypatch):
    words = ["s3://bucket/corpus", str(tmp_path / "data")]
    assert bringing.main(words) == 0
    for written_s, text in ((0.0, b"new"), (1700000000.25, b"two"), (1600000000.0, b"one")):  # also within the second
        bucket.opened.clear()
        monkeypatch.setitem(BUCKET, "corpus/a.txt", text)
        monkeypatch.setattr(Objects, "WRITTEN_S", written_s)
        assert bringing.main(words) == bringing.main(words) == 0
        assert bucket.opened == ["a.txt"]
        assert (tmp_path / "data" / "a.txt").read_bytes() == text


def test_a_file_that_was_written_since_or_whose_note_is_lost_is_fetched_again(bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, place = ["s3://bucket/corpus", "data"], tmp_path / "data"  # below the directory of the job
    assert bringing.main(words) == 0
    (place / "a.txt").write_bytes(b"bbb")
    assert bringing.main(words) == 0
    assert bucket.opened == ["a.txt", "in/b.txt", "a.txt"]
    (notes,) = (Path.home() / ".sublet" / "brought").iterdir()
    notes.write_bytes(notes.read_bytes()[:20])  # cut off
    assert bringing.main(words) == 0
    assert bucket.opened[3:] == ["a.txt", "in/b.txt"]
    assert (place / "a.txt").read_bytes() == b"aaa"


@pytest.mark.parametrize("link", [False, True])
def test_at_a_path_of_the_machine_nothing_is_replaced_that_is_not_from_there(bucket, tmp_path, capsys, link):
    place = tmp_path / "data"
    (place / "in").mkdir(parents=True)
    mine = place / "in" / "b.txt"
    if link:
        (tmp_path / "elsewhere").write_bytes(b"b" * 100)  # even where it leads to the same
        mine.symlink_to(tmp_path / "elsewhere")
    else:
        mine.write_bytes(b"my own")
    assert bringing.main(["s3://bucket/corpus", str(place)]) == 1
    told = capsys.readouterr().err
    assert f"file_mounts.{mine}: something is there that did not come from a bucket, and stays; next: another" in told
    assert mine.read_bytes() == (b"b" * 100 if link else b"my own")
    assert not (place / "a.txt").exists(), "nothing is brought then"
    single = tmp_path / "x.bin"
    single.write_bytes(b"two")
    assert bringing.main(["s3://bucket/one.bin", str(single)]) == 1
    assert single.read_bytes() == b"two"


def test_what_is_the_same_stays_whosever_it_is_and_what_came_from_there_gives_way(
    bucket, tmp_path, monkeypatch, capsys
):
    place, words = tmp_path / "data", ["s3://bucket/corpus", str(tmp_path / "data")]
    place.mkdir()
    (place / "a.txt").write_bytes(b"aaa")
    was = (place / "a.txt").stat()
    assert bringing.main(words) == 0
    now = (place / "a.txt").stat()  # it may have been read
    assert (now.st_ino, now.st_mtime_ns) == (was.st_ino, was.st_mtime_ns), "it is not written again"
    monkeypatch.setitem(BUCKET, "corpus/in/b.txt", b"newer")
    assert bringing.main(words) == 0
    assert (place / "in" / "b.txt").read_bytes() == b"newer"
    (place / "in" / "b.txt").write_bytes(b"a job wrote this")
    assert bringing.main(words) == 1
    assert "it came from there, and was written to since, and stays" in capsys.readouterr().err
    assert (place / "in" / "b.txt").read_bytes() == b"a job wrote this"


def test_two_buckets_at_one_path_of_the_machine_do_not_mix(bucket, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(BUCKET, "other/a.txt", b"another")
    assert bringing.main(["s3://bucket/corpus", str(tmp_path / "data")]) == 0
    assert bringing.main(["s3://bucket/other", str(tmp_path / "data")]) == 1
    assert "it came from s3://bucket/corpus, and stays" in capsys.readouterr().err
    assert (tmp_path / "data" / "a.txt").read_bytes() == b"aaa"
    monkeypatch.chdir(tmp_path)
    assert bringing.main(["s3://bucket/other", "data"]) == 0, "what is below its directory is the job's own"
    assert (tmp_path / "data" / "a.txt").read_bytes() == b"another"


def test_what_comes_by_half_is_not_there_and_what_is_nowhere_is_told(bucket, tmp_path, capsys):
    bucket.cut = True
    assert bringing.main(["s3://bucket/corpus", str(tmp_path / "data")]) == 1
    assert not (tmp_path / "data" / "a.txt").exists()
    bucket.cut = False
    assert bringing.main(["s3://bucket/none", str(tmp_path / "data")]) == 1
    assert "s3://bucket/none cannot be brought to" in capsys.readouterr().err


def carrier(tmp_path, *, elsewhere):
    files = MemoryFiles()
    found = FileSync(tmp_path / "s", files=files, rng=RNG, engine=None, logs=None, elsewhere=elsewhere)
    found.packer = lambda content, folder, mounts, besides: "a" * 64 if not any(map(is_remote, mounts)) else "wrong"
    return found


def loaded(tmp_path, **facts):
    spec = JobSpec(name="job", argv=("train",), cwd="/work", **facts)
    return carrier(tmp_path, elsewhere=True).load(StartWorker(worker_id="w", job_id="j", argv=("train",)), spec).travel


def test_a_node_brings_buckets_before_it_runs_the_setup(tmp_path):
    travel = loaded(tmp_path, mounts={"~/my data": "s3://bucket/corpus", "/x": "/here"}, setup="echo then $0")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", travel.setup],
        env={**os.environ, "SUBLET_PYTHON": "echo"},
        capture_output=True,
        text=True,
        check=True,
    )
    first, then = done.stdout.splitlines()
    assert first == "-P -m sublet.runtime.file_sync.bringing s3://bucket/corpus ~/my data"
    assert then.startswith("then")
    assert (travel.words, bool(travel.witness)) == ("", True), "its node has files of its own, whatever disk it sees"
    assert loaded(tmp_path, setup="make").setup == "make"
    assert loaded(tmp_path).words


@pytest.mark.parametrize("source", ["/etc", "s3://bucket/x"])
def test_where_nodes_are_of_this_machine_nothing_is_put_into_its_users_files(tmp_path, source):
    facts = {"name": "job", "argv": ("train",), "cwd": str(tmp_path)}
    here = carrier(tmp_path, elsewhere=False)
    with pytest.raises(InvalidValue, match=r"file_mounts\.data"):
        asyncio.run(here.pack(JobSpec(**facts, mounts={"data": source})))
    (tmp_path / "data").symlink_to("/etc")
    packed = asyncio.run(here.pack(JobSpec(**facts, mounts={"data": "/etc"}, code="b" * 64)))
    assert packed.code == ""

"""A state directory that travels: what the run needs is there, what belonged to the old place is not."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
from unittest import mock

import pytest

from sublet.errors import BadInput
from sublet.runtime.controller_host import parcel
from sublet.runtime.controller_host.parcel import PIECE_BYTES, Arriving, _entry, pack_state, staged, unpack_state
from sublet.runtime.controller_host.record import (
    FENCED,
    Home,
    HostRecord,
    forget,
    keep,
    on_host,
    read_record,
    refuse_if_away,
)

RECORD = HostRecord(
    region="us-east-1", token="", nonce="n", expires_unix=1, kind="t3.small", user="ubuntu", python="python3"
)


def a_state(folder, texts):
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def stream(source, instead=None):
    return io.BytesIO(b"".join(pack_state(source, instead)))


def random_text(size):
    return random.Random(size).randbytes(size).hex()[:size]


class Watched:
    """A file that says how much was asked of it at once."""

    def __init__(self, file, reads):
        self._file, self._reads = file, reads

    def read(self, size):
        data = self._file.read(size)
        self._reads.append(len(data))
        return data


class Pulled:
    """The bytes of an iterator, as they are asked for."""

    def __init__(self, pieces):
        self._pieces, self._rest = pieces, b""

    def read(self, size):
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def test_a_state_arrives_as_it_was_without_what_belongs_to_a_place(tmp_path):
    source = a_state(
        tmp_path / "a",
        {"log.sqlite": "log", "jobs/one/spec": "x", "token": "of a", "anchor/id": "key", "aws.toml": "a"},
    )
    (source / "link").symlink_to("/etc")
    place = a_state(tmp_path / "b", {"token": "of b", "jobs/old": "gone", "kept": "mine", "settings.json": "ours"})
    (place / "log.sqlite-wal").write_text("of another log")
    unpack_state(stream(source, {"settings.json": "theirs", "aws.toml": "b"}), place, ("settings.json",))
    found = {str(p.relative_to(place)): p.read_text() for p in place.rglob("*") if p.is_file()}
    assert found == {
        "log.sqlite": "log",
        "jobs/one/spec": "x",
        "token": "of b",
        "kept": "mine",
        "settings.json": "ours",
        "aws.toml": "b",
    }


def test_half_a_parcel_changes_nothing(tmp_path):
    data = stream(a_state(tmp_path / "a", {"log.sqlite": "log" * 999})).read()
    place = a_state(tmp_path / "b", {"log.sqlite": "before"})
    for end in (0, 3, len(data) // 2, len(data) - 1):
        with pytest.raises(BadInput, match="whole"):
            unpack_state(io.BytesIO(data[:end]), place)
        assert (place / "log.sqlite").read_text() == "before"


def test_a_parcel_that_was_changed_on_the_way_changes_nothing(tmp_path):
    source = a_state(tmp_path / "a", {"log.sqlite": ""})
    (source / "log.sqlite").write_bytes(random.Random(1).randbytes(3 * PIECE_BYTES))  # which does not pack
    data = bytearray(stream(source).read())
    place = a_state(tmp_path / "b", {"log.sqlite": "before"})
    at = len(data) // 2
    data[at] ^= 1
    with pytest.raises(BadInput, match="whole"):
        unpack_state(io.BytesIO(data), place)
    assert (place / "log.sqlite").read_text() == "before"


def test_no_end_of_a_move_holds_more_than_a_piece(tmp_path):
    """By what it asks for and gives away, however large the state is."""
    source = a_state(tmp_path / "a", {"log.sqlite": "log"})
    large = source / "checkpoints" / "job-1" / "parts" / "x"
    large.parent.mkdir(parents=True)
    with large.open("wb") as file:
        file.truncate(40 * PIECE_BYTES)  # it takes no room
    reads = []
    with mock.patch.object(parcel, "_entry", lambda info, file: _entry(info, Watched(file, reads))):
        pieces = pack_state(source)
        assert max(len(piece) for piece in pieces) <= PIECE_BYTES + 5
    assert max(reads) <= PIECE_BYTES
    assert sum(reads) >= 40 * PIECE_BYTES
    arriving = Arriving(Pulled(pack_state(source)))
    with tarfile.open(fileobj=arriving, mode="r|") as archive:
        assert max(entry.size for entry in archive) == 40 * PIECE_BYTES
    arriving.finish()
    assert arriving.most <= PIECE_BYTES


def test_a_move_that_broke_goes_on_with_what_it_had_not_sent(tmp_path):
    parts = {f"checkpoints/job-1/parts/{n}": random_text(PIECE_BYTES) for n in range(6)}
    source = a_state(tmp_path / "a", {"log.sqlite": "log", **parts})
    place = a_state(tmp_path / "b", {"log.sqlite": "before", "checkpoints/job-1/HEAD": "old"})
    data = stream(source).read()
    with pytest.raises(BadInput, match="whole"):
        unpack_state(io.BytesIO(data[: len(data) * 2 // 3]), place)
    have = staged(place)
    assert 2 <= len(have) <= 5
    (source / "checkpoints/job-1/parts/0").unlink()  # it was thrown away meanwhile
    (source / "checkpoints/job-1/parts/1").write_text("another", encoding="utf-8")
    rest = b"".join(pack_state(source, have=have))
    assert len(rest) < len(data) * 2 // 3
    unpack_state(io.BytesIO(rest), place)
    found = {str(p.relative_to(place)): p.read_text() for p in place.rglob("*") if p.is_file()}
    del parts["checkpoints/job-1/parts/0"]
    assert found == {"log.sqlite": "log", **parts, "checkpoints/job-1/parts/1": "another"}
    assert staged(place) == {}


def test_a_parcel_that_counts_on_what_is_not_there_changes_nothing(tmp_path):
    source = a_state(tmp_path / "a", {"log.sqlite": "log", "checkpoints/x": "x"})
    place = a_state(tmp_path / "b", {"log.sqlite": "before"})
    have = {"checkpoints/x": hashlib.sha256(b"x").hexdigest()}
    with pytest.raises(BadInput, match="checkpoints/x is not here"):
        unpack_state(io.BytesIO(b"".join(pack_state(source, have=have))), place)
    assert (place / "log.sqlite").read_text() == "before"


def test_a_controller_does_not_begin_where_its_state_is_away_or_fenced(tmp_path):
    refuse_if_away(tmp_path)
    keep(tmp_path, RECORD)
    refuse_if_away(tmp_path)  # rented, and not its turn yet
    assert on_host(tmp_path) is None
    there = keep(tmp_path, HostRecord(**{**_facts(RECORD), "home": Home.ANCHOR, "instance": "i-1"}))
    assert read_record(tmp_path) == on_host(tmp_path) == there
    with pytest.raises(BadInput, match="controller host i-1"):
        refuse_if_away(tmp_path)
    forget(tmp_path)
    refuse_if_away(tmp_path)
    (tmp_path / FENCED).touch()
    with pytest.raises(BadInput, match="handed over"):
        refuse_if_away(tmp_path)


def _facts(record):
    return {name: getattr(record, name) for name in record.__slots__}

"""A state directory that travels: what the run needs is there, what belonged to the old place is not."""

from __future__ import annotations

import pytest

from sublet.errors import BadInput
from sublet.runtime.anchor.parcel import pack_state, unpack_state
from sublet.runtime.anchor.record import FENCED, AnchorRecord, Home, anchored, forget, keep, read_record, refuse_if_away

RECORD = AnchorRecord(
    region="us-east-1", token="", nonce="n", expires_unix=1, kind="t3.small", user="ubuntu", python="python3"
)


def a_state(folder, texts):
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_a_state_arrives_as_it_was_without_what_belongs_to_a_place(tmp_path):
    source = a_state(
        tmp_path / "a",
        {"log.sqlite": "log", "jobs/one/spec": "x", "token": "of a", "anchor/id": "key", "aws.toml": "a"},
    )
    (source / "link").symlink_to("/etc")
    place = a_state(tmp_path / "b", {"token": "of b", "jobs/old": "gone", "kept": "mine", "settings.json": "ours"})
    (place / "log.sqlite-wal").write_text("of another log")
    unpack_state(pack_state(source, {"settings.json": "theirs", "aws.toml": "b"}), place, ("settings.json",))
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
    data = pack_state(a_state(tmp_path / "a", {"log.sqlite": "log" * 999}))
    place = a_state(tmp_path / "b", {"log.sqlite": "before"})
    with pytest.raises(BadInput, match="whole"):
        unpack_state(data[: len(data) // 2], place)
    assert (place / "log.sqlite").read_text() == "before"


def test_a_controller_does_not_begin_where_its_state_is_away_or_fenced(tmp_path):
    refuse_if_away(tmp_path)
    keep(tmp_path, RECORD)
    refuse_if_away(tmp_path)  # rented, and not its turn yet
    assert anchored(tmp_path) is None
    there = keep(tmp_path, AnchorRecord(**{**_facts(RECORD), "home": Home.ANCHOR, "instance": "i-1"}))
    assert read_record(tmp_path) == anchored(tmp_path) == there
    with pytest.raises(BadInput, match="anchor i-1"):
        refuse_if_away(tmp_path)
    forget(tmp_path)
    refuse_if_away(tmp_path)
    (tmp_path / FENCED).touch()
    with pytest.raises(BadInput, match="handed over"):
        refuse_if_away(tmp_path)


def _facts(record):
    return {name: getattr(record, name) for name in record.__slots__}

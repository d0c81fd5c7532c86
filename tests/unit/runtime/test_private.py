"""Nobody but its owner may look into a state directory, whatever the umask and whoever made it."""

from __future__ import annotations

import os
import socket

import pytest

from sublet.api.state import StateDir
from sublet.runtime.store import Store


def modes(folder):
    return {entry.name: entry.stat(follow_symlinks=False).st_mode & 0o777 for entry in os.scandir(folder)}


@pytest.fixture(autouse=True)
def _a_generous_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_store_is_readable_by_its_owner_alone(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store.put("secret", "x")
    assert modes(tmp_path) == dict.fromkeys(("log.sqlite", "log.sqlite-shm", "log.sqlite-wal"), 0o600)
    store.close()


def test_a_store_that_others_could_read_is_closed_to_them_with_all_its_files(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store.put("secret", "x")
    for name in modes(tmp_path):
        (tmp_path / name).chmod(0o644)
    again = Store(tmp_path / "log.sqlite")
    assert set(modes(tmp_path).values()) == {0o600}
    again.close()
    store.close()


def test_an_existing_state_directory_with_wider_modes_is_closed(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    for name in ("settings.json", "log.sqlite", "controller.log", "token"):
        (folder / name).write_text("")
    (folder / "jobs").mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / "agents.sock"))
        state = StateDir(folder)
        state.prepare()
        assert not state.taken  # which makes the lock
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {name: mode for name, mode in modes(folder).items() if mode != 0o600} == {"jobs": 0o700}

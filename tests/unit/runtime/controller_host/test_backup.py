"""Backups of two controllers in one bucket: each has a place of its own. What a restore says of jobs with secrets."""

from __future__ import annotations

import json
import threading

import pytest

from sublet.machine.remote import RemoteObjects
from sublet.runtime.controller_host.backup import STATE, Backup, _packed, place_of, restore_from
from sublet.runtime.providers.aws.build import server_of
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.store import Store


def test_two_directories_that_name_one_bucket_do_not_write_over_each_other(tmp_path):
    servers = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        servers.append(server_of(tmp_path / name))
    one, other = (place_of("s3://bucket/anchor/", server) for server in servers)
    assert one == f"s3://bucket/anchor/{servers[0]}"
    assert one != other
    assert not other.startswith(f"{one}/")


def test_a_directory_that_moved_finds_its_own_again(tmp_path):
    (tmp_path / "here").mkdir()
    server = server_of(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert server_of(tmp_path / "there") == server


def test_a_restore_names_the_jobs_that_wait_for_their_secrets(tmp_path):
    memory = pytest.importorskip("obstore.store").MemoryStore
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    store = Store(there / "log.sqlite")
    for name, facts in (("lacks", {}), ("has", {}), ("ended", {"outcome": "finished"}), ("plain", {})):
        hidden = {} if name == "plain" else {"HF_TOKEN": "***"}
        store.add_job(f"{name}-1", "", json.dumps({"name": name, "secrets": hidden}))
        store.change_job(f"{name}-1", facts=json.dumps(facts))
    store.close()
    here.mkdir()
    SecretFiles(here).keep("has-1", {"HF_TOKEN": "x"})  # of before it went to the controller host
    bucket = RemoteObjects("memory", memory())
    bucket.put(STATE, _packed(there, ["log.sqlite"]))
    (said,) = restore_from(bucket, here, ())
    assert said.startswith("lacks-1: waits for its secrets (HF_TOKEN)")
    assert "sublet resume lacks-1 --secret" in said


def test_files_that_a_controller_makes_and_removes_meanwhile_are_in_no_backups_way(tmp_path):
    """Drafts of parts, and what SQLite has beside a log: they are listed, and gone when they are looked at."""
    content, over = tmp_path / "content", threading.Event()
    content.mkdir()
    (content / "part").write_bytes(b"here")

    def work():
        while not over.is_set():
            for number in range(50):
                (content / f"{number}.new").write_bytes(b"")
            for number in range(50):
                (content / f"{number}.new").rename(content / str(number))
                (content / str(number)).unlink()

    working = threading.Thread(target=work)
    working.start()
    try:
        assert all(_packed(tmp_path, ["content", "settings.json"]) for _ in range(50))
    finally:
        over.set()
        working.join()


def test_a_log_that_is_closed_as_a_backup_looks_is_written_all_the_same(tmp_path):
    memory = pytest.importorskip("obstore.store").MemoryStore
    Store(tmp_path / "log.sqlite").close()
    (tmp_path / "log.sqlite-gone").symlink_to(tmp_path / "nowhere")  # as a -wal that was removed when it was listed
    backup, bucket = Backup(tmp_path, "memory"), RemoteObjects("memory", memory())
    backup._objects = bucket
    assert backup.write()
    assert not backup.write()
    assert STATE in {each.key for each in bucket.list()}

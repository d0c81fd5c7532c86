"""A bucket as a folder: what comes, what goes back, and who wins where both were written."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from obstore.store import MemoryStore

from sublet.machine.objects import StoreFailed
from sublet.machine.remote import RemoteObjects
from sublet.runtime.file_sync.mirror import Mirror, NotOurs


class Failing(RemoteObjects):
    """It takes nothing for a while."""

    refuses = ""

    def upload(self, key, path):
        if self.refuses and key.startswith(self.refuses):
            raise StoreFailed(self.uri, "no answer", hint="wait")
        return super().upload(key, path)


@pytest.fixture
def objects():
    found = Failing("memory://bucket", MemoryStore())
    found.put("a.txt", b"of the bucket")
    found.put("in/b.txt", b"b" * 10)
    return found


def node(tmp_path, objects, name="node"):
    """A node of its own: folder and index."""
    return Mirror(objects, tmp_path / name / "data", tmp_path / name / "home" / "index.json")


def end_before_the_index_is_written(monkeypatch, mirror):
    """Its files are there, and nobody has said so."""
    save = Mirror._save

    def end(self, files):
        if files:
            raise KeyboardInterrupt
        save(self, files)

    with monkeypatch.context() as patched:
        patched.setattr(Mirror, "_save", end)
        with pytest.raises(KeyboardInterrupt):
            mirror.pull()


def data(objects):
    return {found.key: objects.get(found.key).data for found in objects.list()}


def later(path, text, by_s=10.0):
    """Written, by the clock of this node, after everything that is in the bucket."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    at_s = path.stat().st_mtime + by_s
    os.utime(path, (at_s, at_s))


def test_a_folder_has_what_the_bucket_has_with_its_times_and_a_second_pull_brings_nothing(tmp_path, objects):
    here = node(tmp_path, objects)
    assert here.pull() == 2
    place = tmp_path / "node" / "data"
    assert (place / "in" / "b.txt").read_bytes() == b"b" * 10
    assert abs((place / "a.txt").stat().st_mtime - objects.look("a.txt").changed_s) < 0.01
    assert here.pull() == 0
    assert here.push(last=True) == (0, 0, None), "what came from there does not go back"


def test_what_is_written_goes_back_when_it_was_quiet_and_is_closed(tmp_path, objects):
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    here.pull()
    (place / "new").mkdir()
    (place / "new" / "model.pt").write_bytes(b"one")
    assert here.push().uploaded == 0, "it may still grow"
    with (place / "new" / "model.pt").open("ab") as file:
        file.write(b"")
        assert here.push().uploaded == 0, "somebody has it open"
    assert here.push().uploaded == 1
    assert data(objects)["new/model.pt"] == b"one"
    assert here.push().uploaded == 0
    (place / "new" / "model.pt").write_bytes(b"other")
    assert here.push().uploaded == 0
    assert here.push(last=True).uploaded == 1, "there is no later"
    assert data(objects)["new/model.pt"] == b"other"


def test_what_another_worker_on_the_node_still_writes_is_left_to_it(tmp_path, objects):
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    here.pull()
    (place / "whole").write_text("x")
    hold = ["bash", "-c", f"exec 9> {place}/half; echo half >&9; echo ready; read -r"]
    with subprocess.Popen(hold, process_group=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert here.push(last=True).uploaded == 1
        assert "half" not in data(objects)
        other.communicate(b"\n")
    assert here.push(last=True).uploaded == 1


def test_only_what_the_job_wrote_here_is_deleted_there(tmp_path, objects):
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    here.pull()
    (place / "mine").write_text("1")
    (place / "others").write_text("1")
    here.push(last=True)
    objects.put("others", b"of another, since")
    for name in ("a.txt", "mine", "others"):
        (place / name).unlink()
    assert here.push(last=True).deleted == 1
    assert data(objects) == {"a.txt": b"of the bucket", "in/b.txt": b"b" * 10, "others": b"of another, since"}
    assert here.pull() == 2, "what is in the bucket is in the folder of the next worker"


def test_a_folder_that_is_gone_deletes_nothing(tmp_path, objects):
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    here.pull()
    (place / "mine").write_text("1")
    here.push(last=True)
    place.rename(tmp_path / "elsewhere")
    assert here.push(last=True) == (0, 0, None)
    assert "mine" in data(objects)


def test_a_node_that_is_come_back_to_has_what_was_written_elsewhere_meanwhile(tmp_path, objects):
    one, two = node(tmp_path, objects, "one"), node(tmp_path, objects, "two")
    one.pull()
    (tmp_path / "one" / "data" / "step").write_text("100")
    one.push(last=True)
    two.pull()
    (tmp_path / "two" / "data" / "step").write_text("200!")
    (tmp_path / "two" / "data" / "in" / "b.txt").unlink()
    two.push(last=True)
    objects.delete(["in/b.txt"])
    assert one.pull() == 1
    assert (tmp_path / "one" / "data" / "step").read_text() == "200!"
    assert not (tmp_path / "one" / "data" / "in" / "b.txt").exists()
    assert one.push(last=True) == (0, 0, None)


@pytest.mark.parametrize(("by_s", "stays"), [(3600.0, "of the node"), (-3600.0, "of the bucket, new")])
def test_where_both_were_written_the_later_one_stays(tmp_path, objects, by_s, stays):
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    here.pull()
    objects.put("a.txt", b"of the bucket, new")
    objects.put("c.txt", b"of the bucket, new")
    for name in ("a.txt", "c.txt"):
        later(place / name, "of the node", by_s)
    here.pull()
    here.push(last=True)
    assert [(place / name).read_text() for name in ("a.txt", "c.txt")] == [stays, stays]
    assert data(objects)["a.txt"] == data(objects)["c.txt"] == stays.encode()


def test_a_pull_that_was_ended_in_its_middle_leaves_nothing_that_goes_back(tmp_path, objects, monkeypatch):
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    end_before_the_index_is_written(monkeypatch, here)
    again = node(tmp_path, objects)
    assert again.pull() == 0
    assert again.push(last=True) == (0, 0, None)
    objects.put("a.txt", b"newer")
    assert again.pull() == 1
    assert (place / "a.txt").read_text() == "newer"


def test_what_was_replaced_within_the_second_by_as_many_bytes_is_brought_all_the_same(tmp_path, objects, monkeypatch):
    listed = objects.list
    monkeypatch.setattr(objects, "list", lambda: [replace(found, changed_s=1_700_000_000.0) for found in listed()])
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    end_before_the_index_is_written(monkeypatch, here)
    objects.put("a.txt", b"OF THE BUCKET")
    again = node(tmp_path, objects)
    assert again.pull() == 1
    assert (place / "a.txt").read_text() == "OF THE BUCKET"
    assert again.push(last=True) == (0, 0, None)
    objects.put("a.txt", b"by the next..")
    assert again.pull() == 1
    assert (place / "a.txt").read_text() == "by the next.."


def test_what_could_not_be_taken_back_is_tried_again_and_the_rest_is_there(tmp_path, objects):
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    here.pull()
    objects.refuses = "x"
    (place / "x").write_text("1")
    (place / "y").write_text("2")
    done = here.push(last=True)
    assert (done.uploaded, done.failed.why) == (1, "no answer")
    objects.refuses = ""
    assert here.push(last=True).uploaded == 1
    assert data(objects)["x"] == b"1"


def test_files_that_are_nobodys_are_never_taken_for_the_jobs(tmp_path, objects):
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    place.mkdir(parents=True)
    (place / "private").write_text("keys")
    with pytest.raises(NotOurs, match="empty folder"):
        here.pull()
    assert "private" not in data(objects)


def test_links_and_names_that_no_bucket_takes_stay_and_are_told(tmp_path, objects):
    here, place = node(tmp_path, objects), tmp_path / "node" / "data"
    here.pull()
    (place / "to").symlink_to("/etc/hostname")
    (place / "two\nlines").write_text("x")
    assert here.push(last=True) == (0, 0, None)
    assert here.told == {"to", "two\nlines"}


def test_a_second_bucket_comes_to_a_folder_only_when_nobody_uses_the_first(tmp_path, objects):
    other = RemoteObjects("memory://other", MemoryStore())
    other.put("z", b"z")
    first, second, place = node(tmp_path, objects), node(tmp_path, other), tmp_path / "node" / "data"
    with first.used():
        first.pull()
        with pytest.raises(NotOurs, match="a job that runs has memory://bucket"), second.used():
            pass
        (place / "late").write_text("not back yet")
    with pytest.raises(NotOurs, match="late there was not taken back"), second.used():
        pass
    with first.used():
        first.push(last=True)
    with second.used():
        second.pull()
        assert [path.name for path in Path(place).iterdir()] == ["z"]
    assert "late" in data(objects)


def test_an_object_that_stands_for_a_folder_is_no_file(tmp_path, objects):
    objects.put("in", b"")
    node(tmp_path, objects).pull()
    assert (tmp_path / "node" / "data" / "in").is_dir()

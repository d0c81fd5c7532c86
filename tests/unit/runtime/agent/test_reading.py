"""What is seen of the files that a script keeps in its own directory, on a real disk."""

from __future__ import annotations

import os
import time

import pytest

from sublet.runtime.agent import reading
from sublet.runtime.agent.reading import Reading, Resuming

HOUR_S = 3600.0
LATER_S = 100.0  # of its life


@pytest.fixture
def place(tmp_path):
    (tmp_path / "probe").write_bytes(b"x")
    if Reading(str(tmp_path)).told != "no":
        pytest.skip("this file system notes no reads")
    (tmp_path / "probe").unlink()
    return tmp_path


def written(path, ago_s=60.0):
    """By a start before this one, or before the first of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    os.utime(path, (time.time() - ago_s,) * 2)
    return path


def in_place(path):
    path.write_bytes(b"new")


def renamed(path):
    draft = path.with_suffix(".tmp")
    draft.write_bytes(b"new")
    draft.replace(path)


@pytest.mark.parametrize("save", [in_place, renamed])
def test_what_an_earlier_start_wrote_and_this_one_reads_is_a_checkpoint_and_so_is_what_it_writes_there(place, save):
    snapshot = written(place / "snapshot.pt")
    own = Resuming(str(place), 0.0, began_ago_s=HOUR_S)
    assert own.look(1.0) == (True, None, None, None)
    snapshot.read_bytes()
    save(snapshot)
    seen = own.look(LATER_S)
    assert seen.looked
    assert 60.0 <= seen.loaded_ago_s <= HOUR_S
    assert 0.0 <= seen.saved_ago_s <= LATER_S
    assert own.look(LATER_S).loaded_ago_s >= seen.loaded_ago_s  # and it stays so
    own.look(LATER_S, last=True)
    assert own._readings == {}


def test_a_file_that_nobody_reads_is_written_and_no_more_is_known(place):
    written(place / "model.pt")
    own = Resuming(str(place), 0.0, began_ago_s=HOUR_S)
    in_place(place / "model.pt")
    seen = own.look(LATER_S)
    assert (seen.wrote_ago_s is not None, seen.saved_ago_s, seen.loaded_ago_s) == (True, None, None)


def test_reading_what_this_start_itself_wrote_is_no_going_on(place):
    model = written(place / "model.pt")
    own = Resuming(str(place), 0.0, began_ago_s=HOUR_S)
    in_place(model)
    own.look(1.0)
    model.read_bytes()
    assert own.look(LATER_S).loaded_ago_s is None


def test_samples_that_were_there_before_the_job_are_no_checkpoint(place):
    samples = written(place / "data" / "train.bin", ago_s=2 * HOUR_S)
    own = Resuming(str(place), 0.0, began_ago_s=HOUR_S)
    samples.read_bytes()
    assert own.look(LATER_S) == (True, None, None, None)


def test_where_the_first_start_is_not_known_nothing_is_said_to_be_read(place):
    snapshot = written(place / "snapshot.pt")
    own = Resuming(str(place), 0.0)
    snapshot.read_bytes()
    in_place(snapshot)
    seen = own.look(LATER_S)
    assert (seen.wrote_ago_s is not None, seen.saved_ago_s, seen.loaded_ago_s) == (True, None, None)


def test_checkpoints_of_one_series_differ_in_a_number_and_other_files_are_none(place):
    written(place / "ckpt-1" / "model.pt").read_bytes()
    own = Resuming(str(place), 0.0, began_ago_s=HOUR_S)
    (place / "ckpt-1" / "model.pt").read_bytes()
    written(place / "metrics.json", ago_s=0.0)
    seen = own.look(LATER_S)
    assert (seen.wrote_ago_s is not None, seen.saved_ago_s) == (True, None)
    written(place / "ckpt-2" / "model.pt", ago_s=0.0)
    assert own.look(2 * LATER_S).saved_ago_s is not None


@pytest.mark.parametrize(
    "name", ["train.log", "train.py", "__pycache__/x.bin", ".git/index", "runs/events.out.tfevents.1", "ours/a.pt"]
)
def test_logs_code_and_what_tools_keep_are_no_work(place, name):
    own = Resuming(str(place), 0.0, apart=(str(place / "ours"), ""))
    written(place / name, ago_s=0.0)
    assert own.look(LATER_S) == (True, None, None, None)


def test_a_folder_that_a_link_leads_to_is_its_own_and_a_circle_ends(place, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (place / "ckpt").symlink_to(elsewhere)
    (place / "round").symlink_to(place)
    snapshot = written(elsewhere / "run" / "snapshot.pt")
    own = Resuming(str(place), 0.0, began_ago_s=HOUR_S)
    snapshot.read_bytes()
    in_place(place / "ckpt" / "run" / "snapshot.pt")
    seen = own.look(LATER_S)
    assert (seen.looked, seen.loaded_ago_s is not None, seen.saved_ago_s is not None) == (True, True, True)


def test_a_directory_with_too_many_files_is_not_said_to_be_looked_at(place, monkeypatch):
    monkeypatch.setattr(reading, "MOST_FILES", 3)
    for number in range(4):
        written(place / f"{number}.jpg")
    assert not Resuming(str(place), 0.0).look(LATER_S).looked


def test_a_slow_directory_is_looked_at_less_often_and_at_the_end_in_any_case(place):
    own = Resuming(str(place), 0.0)
    own._look_s = 1000.0
    written(place / "model.pt", ago_s=0.0)
    assert own.look(LATER_S).wrote_ago_s is None
    assert own.look(LATER_S, last=True).wrote_ago_s is not None

"""What workers print is kept up to its bounds: the end of it, found by whoever asks, and written by who goes on."""

from __future__ import annotations

import os

import pytest

from sublet.runtime.controller.files.logs import SLACK, WorkerLogs, before, cut_log, keep_below

MOST = 10_000


@pytest.fixture
def printed(tmp_path):
    """A worker's file, and the descriptor by which it prints."""
    path = tmp_path / "j-1.1.0.log"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield path, file
    os.close(file)


def fill(file, lines, begin=0):
    for at in range(begin, begin + lines):
        os.write(file, b"line %06d\n" % at)


def test_a_log_that_is_too_long_begins_anew_and_its_end_lies_beside_it_from_a_whole_line_on(printed):
    path, file = printed
    fill(file, 5_000)
    assert cut_log(path, MOST)
    fill(file, 2, begin=5_000)
    note, *lines = path.read_text().splitlines()
    assert before(path).name in note
    assert lines == ["line 005000", "line 005001"]
    kept = before(path).read_text().splitlines()
    assert kept[-1] == "line 004999"
    assert all(len(line) == len(kept[-1]) for line in kept)
    assert MOST - 100 < before(path).stat().st_size <= MOST


def test_a_log_within_its_bound_is_as_it_was_printed(printed):
    path, file = printed
    fill(file, (MOST + SLACK) // 12)
    text = path.read_text()
    assert not cut_log(path, MOST)
    assert path.read_text() == text
    assert not before(path).exists()
    assert not cut_log(path.with_name("none.log"), MOST)


def test_what_is_no_file_of_a_worker_is_let_be(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"x" * 10 * MOST)
    (tmp_path / "w.log").symlink_to(other)
    assert not cut_log(tmp_path / "w.log", MOST)
    assert other.stat().st_size == 10 * MOST


def test_of_a_job_the_oldest_logs_go_but_of_those_that_print(tmp_path):
    paths = [tmp_path / f"j-1.{at}.0.log" for at in range(4)]
    for at, path in enumerate(paths):
        path.write_bytes(b"x" * 100)
        os.utime(path, (at, at))
    keep_below(tmp_path, {paths[0]}, most=200)
    assert [path.exists() for path in paths] == [True, False, False, True]
    keep_below(tmp_path, set(paths), most=0)
    assert [path.exists() for path in paths] == [True, False, False, True]


def test_ranks_are_found_in_what_is_there_after_a_log_has_begun_anew(tmp_path):
    logs = WorkerLogs(tmp_path)
    logs.add_launch("j-1.1.0", "n", 0)
    logs.set_rank("j-1.1.0", "n", 0)
    logs.path("j-1.1.0").write_bytes(b"y\n" * 6_000)
    logs.set_rank("j-1.1.0", "n", 1)
    with logs.path("j-1.1.0").open("ab") as file:
        file.write(b"y\n" * 6_000)
    assert cut_log(logs.path("j-1.1.0"), MOST)
    logs.begin_anew("j-1.1.0")
    for found in (logs, WorkerLogs(tmp_path)):
        assert [(part.rank, part.start, part.end) for part in found.parts(rank=1)] == [(1, 0, None)]
        assert found.parts(rank=0) == ()


def test_a_rank_that_was_ordered_before_a_log_began_anew_is_taken_within_it(tmp_path):
    logs = WorkerLogs(tmp_path)
    logs.set_rank("j-1.1.0", "n", 0)
    logs.path("j-1.1.0").write_bytes(b"y\n" * 12_000)
    logs.add_order("j-1.1.0", "n", 2, generation=3)
    assert cut_log(logs.path("j-1.1.0"), MOST)
    logs.begin_anew("j-1.1.0")
    at = logs.path("j-1.1.0").stat().st_size
    logs.confirm_join("j-1.1.0", 3, at)
    assert [(part.rank, part.start, part.end) for part in logs.parts(rank=2)] == [(2, at, None)]
    assert [(part.rank, part.start, part.end) for part in logs.parts(rank=0)] == [(0, 0, at)]


def test_a_log_that_begins_anew_after_its_worker_ended_is_still_of_its_node_and_rank(tmp_path):
    logs = WorkerLogs(tmp_path)
    logs.add_launch("j-1.1.0", "n", 2)
    logs.add_end("j-1.1.0", "exit code 3")
    logs.begin_anew("j-1.1.0")
    for found in (logs, WorkerLogs(tmp_path)):
        assert [(part.rank, part.node_id, part.ended) for part in found.parts()] == [(2, "n", "exit code 3")]

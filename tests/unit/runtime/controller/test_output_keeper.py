"""What jobs print is kept within its bounds by a thread: also of workers that no group knows, and of ended jobs."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from sublet.runtime.controller.files import logs as output_keeper
from sublet.runtime.controller.files.logs import LAST_S, LOOK_S, SLACK, JobLogs, LogKeeper, before, cut_log

MOST = 100_000
BOUND = 2 * (MOST + SLACK)  # of one worker, with what lies beside it
PATIENCE_S = 120.0


def until(condition, what):
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


def total(folder):
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def folder_of(tmp_path, job_id):
    folder = tmp_path / "jobs" / job_id / "logs"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def keeper():
    keeper = LogKeeper()
    keeper.most = MOST
    yield keeper
    keeper.end()


def records(*job_ids, workers=()):
    return [SimpleNamespace(id=job_id, group=SimpleNamespace(workers=dict.fromkeys(workers))) for job_id in job_ids]


def test_jobs_that_print_without_end_stay_within_bounds_and_the_caller_does_no_work_on_files(tmp_path, monkeypatch):
    """None of their workers is in a group: so it is where their nodes were lost."""
    where, jobs, logs = [], [f"j-{number}" for number in range(4)], JobLogs(tmp_path)
    logs.keeper.most = MOST

    def cut(path, most):
        done = cut_log(path, most)
        if done:
            where.append((threading.get_ident(), path.parent))
        return done

    monkeypatch.setattr(output_keeper, "cut_log", cut)
    folders = [folder_of(tmp_path, job_id) for job_id in jobs]
    writers = []
    for job_id, folder in zip(jobs, folders, strict=True):
        with (folder / f"{job_id}.1.0.log").open("ab") as file:
            writers.append(subprocess.Popen(["yes"], stdout=file))
    try:
        with logs.kept():

            def all_were_cut_thrice():
                logs.keep_bounds(records(*jobs))
                return all([path for _, path in where].count(folder) >= 3 for folder in folders)

            until(all_were_cut_thrice, "nothing keeps the bounds")
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert threading.get_ident() not in {ident for ident, _ in where}
    logs.keeper.look_last()
    assert all(0 < total(folder) <= BOUND for folder in folders)


def test_a_job_that_has_ended_is_looked_at_until_it_has_not_printed_for_long(tmp_path, keeper):
    folder = folder_of(tmp_path, "j-1")
    path = folder / "j-1.1.0.log"
    path.write_bytes(b"x" * 10)
    keeper.folders = {folder: ("j-1.1.0",)}
    keeper.look()
    keeper.folders = {}
    path.write_bytes(b"x" * 2 * MOST)
    keeper.look_all()
    assert path.stat().st_size < MOST
    for _ in range(int(LAST_S / LOOK_S) - 2):
        assert not keeper.look()
    path.write_bytes(b"x" * 2 * MOST)
    keeper.look_all()  # it printed: it is looked at for as long again
    assert path.stat().st_size < MOST
    for _ in range(int(LAST_S / LOOK_S) + 2):
        assert not keeper.look()
    path.write_bytes(b"x" * 2 * MOST)
    keeper.look_all()
    assert path.stat().st_size == 2 * MOST


def test_what_came_before_is_no_log_of_its_own(tmp_path, keeper):
    folder = folder_of(tmp_path, "j-1")
    path = before(folder / "j-1.1.0.log")
    path.write_bytes(b"x" * 2 * MOST)
    keeper.folders = {folder: ()}
    assert not keeper.look()
    assert [each.name for each in folder.iterdir()] == [path.name]


def test_of_a_job_no_log_goes_that_is_printed_on_though_no_group_knows_its_worker(tmp_path, keeper):
    folder = folder_of(tmp_path, "j-1")
    paths = [folder / f"j-1.{at}.0.log" for at in range(4)]
    for at, path in enumerate(paths):
        path.write_bytes(b"x" * 100)
        os.utime(path, (at, at))
    keeper.folders = {folder: ("j-1.1.0",)}
    keeper.look()
    with paths[0].open("ab") as file:
        file.write(b"y")
    os.utime(paths[0], (0, 0))
    keeper.most_of_job = 250
    keeper.look()
    assert [path.exists() for path in paths] == [True, True, False, False]


def test_a_log_that_began_anew_is_known_to_have_done_so_by_the_next_question(tmp_path):
    logs = JobLogs(tmp_path)
    folder = folder_of(tmp_path, "j-1")
    logs.keeper.most = MOST
    logs.of("j-1").set_rank("j-1.1.0", "n", 0)
    (folder / "j-1.1.0.log").write_bytes(b"y\n" * MOST)
    logs.of("j-1").set_rank("j-1.1.0", "n", 1)
    logs.keeper.folders = {folder: ()}
    logs.keeper.look_all()
    assert [(part.rank, part.start, part.end) for part in logs.of("j-1").parts(rank=1)] == [(1, 0, None)]
    assert logs.of("j-1").parts(rank=0) == ()

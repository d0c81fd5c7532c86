"""Under a real controller the job of a profiling run is given each width and batch of its course, and tells of it."""

from __future__ import annotations

import asyncio

import pytest

from sublet.machine.wall import WALL
from sublet.runtime.clock import Clock
from sublet.runtime.profiling.course import Course, Stop, Walk
from sublet.runtime.profiling.run import follow_course
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.asgi import OFFERS, serving
from tests.rigs.story import a_spec


def profiled(folder, course, training):
    """What its job has told when the course is through, and where it went."""
    cloud, told = MemoryCloud(OFFERS, Clock(speedup=1.0)), []
    cloud.jobs["j-1"] = training

    async def live():
        async with serving(folder, cloud=cloud, policy=Walk(course)) as server:
            await server.api.submit(a_spec(max_workers=max(course.widths), market="on-demand"))
            course.end_s = WALL.monotonic() + 600.0
            failure = await follow_course(server.api, "j-1", course, told.append)
            return failure, server.api.record("j-1").profile

    failure, heard = asyncio.run(live())
    return failure, heard, told


@pytest.mark.usefixtures("virtual_time")
def test_a_course_is_walked_and_measured_stop_by_stop(tmp_path):
    course = Course(widths=[1, 2], batches=[256])
    failure, heard, told = profiled(tmp_path, course, Training(steps=10**9, batches=(64, 32, 1024)))
    assert failure == ""
    assert told == [str(stop) for stop in (Stop(1, 256), Stop(2, 256))]
    rows = {(row.gpus, row.samples): row.step_s for row in heard.rows}
    # As `Training.profiled` has it: 20 ms, 1 ms a sample, 10 ms to exchange, 5 ms to update.
    planted = {(1, 256): 0.281, (2, 128): 0.163}
    assert {form: rows[form] for form in planted} == pytest.approx(planted, rel=1e-2)
    assert course.notes == []


@pytest.mark.usefixtures("virtual_time")
def test_a_script_that_fails_is_told_of(tmp_path):
    course = Course(widths=[1])
    failure, heard, _ = profiled(tmp_path, course, Training(ends_with=3))
    assert failure == "boom"  # as its worker said
    assert not heard.rows

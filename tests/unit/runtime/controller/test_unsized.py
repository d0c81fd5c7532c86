"""How large scripts are that do not say: what finished ones of the same group teach the next, and who else may."""

from __future__ import annotations

import asyncio

import pytest

from sublet.runtime.clock import Clock
from sublet.runtime.controller.jobs import sizes as size_files
from sublet.runtime.controller.jobs.sizes import SizeFiles, group_of
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud
from sublet_lab.memory_cloud import Worker as Process
from tests.rigs.story import OFFERS, Story, a_spec, phase, until

SPEEDUP = 3600.0  # an hour of the cloud is a second


class Scripts(MemoryCloud):
    """Workers that do nothing by themselves."""

    def _start(self, node, message):
        node.workers[message.worker_id] = Process(message.worker_id, message.job_id, node.id)
        self._say(node.id, wire.WorkerUp(worker_id=message.worker_id, pid=1))

    def end_all(self, code):
        for node in self.nodes.values():
            for worker in list(node.workers.values()):
                self._end(node, worker, code)


def a_script(**facts):
    return a_spec(**{"sdk": False, "max_workers": 1, "market": "spot", "grace_s": 0.1, **facts})


def job_of(api, job_id):
    return api._controller.kernel.jobs[job_id].job


def alone_h(job):
    """What the kernel thinks that it takes on one worker."""
    return job.work / job.speed.rate("T4", (1,), 0.0) / 3600.0


async def had(api, hours, job_id):
    async def reached():
        return api.record(job_id).had_h >= hours

    await phase(api, job_id, "running")
    await until(reached, f"{job_id} never had {hours} h")


@pytest.mark.usefixtures("virtual_time")
def test_the_next_script_of_a_group_is_thought_to_be_as_large_as_the_last_over_a_restart(tmp_path):
    story = Story(tmp_path, speedup=SPEEDUP, policy="price")
    story.cloud = Scripts(OFFERS, Clock(speedup=SPEEDUP))

    async def first():
        async with story.controller() as api:
            await api.submit(a_script())
            await phase(api, "j-1", "running")
            assert alone_h(job_of(api, "j-1")) == pytest.approx(1.0), "nothing is known"
            await had(api, 6.0, "j-1")
            assert alone_h(job_of(api, "j-1")) > 6.0, "it is older than what was assumed, and not at its end"
            state = api._controller.kernel.jobs["j-1"]
            assert (await api.job("j-1"))["size_h"] is None, "no other has finished"
            assert 0.2 < state.done_at(api._controller.now_s()) < 0.8, "of what it has had, and is expected to need"
            story.cloud.end_all(0)
            await phase(api, "j-1", "finished")
            other = (await api.submit(a_script(name="other")))["job_id"]
            (needed,) = api._controller.kernel.tenancy.census.ended.gpu_hours
            by_all_h = (2.0 * 1.0 + needed) / 3.0  # beside two that need an hour, the one that is done
            assert alone_h(job_of(api, other)) == pytest.approx(by_all_h, rel=0.01), "it is of another group"
            await api.cancel(other)

    async def second():
        async with story.controller() as api:
            job_id = (await api.submit(a_script()))["job_id"]
            learned = SizeFiles(story.folder / "sizes").of("name-j")
            assert len(learned) == 1
            assert 6.0 <= learned[0] < 60.0
            assert alone_h(job_of(api, job_id)) == pytest.approx(learned[0], rel=1e-4)
            await phase(api, job_id, "running")
            notes = (await api.explain(job_id))["notes"]
            assert any("its size is learned from 1 finished job of this group: median" in note for note in notes)
            view = await api.job(job_id)
            assert (view["progress"], view["size_h"]) == (None, pytest.approx(learned[0], rel=1e-4))
            assert 0.0 <= view["had_h"] < view["size_h"]
            dry = await api.dry_run(a_script())
            assert any("learned from 1 finished job" in note for note in dry["notes"])

            async def outlived():
                return alone_h(job_of(api, job_id)) > 1.5 * learned[0]

            await until(outlived, "it is thought to end, and does not")

    asyncio.run(first())
    asyncio.run(second())


@pytest.mark.usefixtures("virtual_time")
def test_while_none_of_a_group_is_done_one_that_runs_on_tells_that_the_others_are_long_until_it_is_cancelled(tmp_path):
    story = Story(tmp_path, speedup=SPEEDUP, policy="price")
    story.cloud = Scripts(OFFERS, Clock(speedup=SPEEDUP))

    async def life():
        async with story.controller() as api:
            await api.submit(a_script())
            await had(api, 8.0, "j-1")
            job_id = (await api.submit(a_script()))["job_id"]
            assert alone_h(job_of(api, job_id)) >= 2.0 * 8.0, "it is thought to be as long as twice what j-1 has had"
            stranger = (await api.submit(a_script(name="other")))["job_id"]
            assert alone_h(job_of(api, stranger)) == pytest.approx(1.0), "of another group, and none has ended"
            await phase(api, job_id, "running")
            notes = (await api.explain(job_id))["notes"]
            assert any("no job of its group has finished, and one that has not has had" in note for note in notes)
            await api.cancel("j-1")
            await phase(api, "j-1", "cancelled")
            third = (await api.submit(a_script()))["job_id"]
            others_h = api.record(job_id).had_h
            assert alone_h(job_of(api, third)) <= max(1.0, 2.2 * others_h + 0.1), "who was cancelled tells nothing"

    asyncio.run(life())


def test_a_group_is_a_script_to_the_letter_or_a_name_and_who_tells_its_size_has_none(tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    script = {"argv": ("python", "train.py"), "cwd": str(tmp_path)}
    group = group_of(a_script(name="a", **script))
    assert group == group_of(a_script(name="b", **script))
    (tmp_path / "train.py").write_text("print(2)")
    assert group_of(a_script(name="a", **script)) != group
    assert group_of(a_script(name="a")) == "name-a"
    assert group_of(a_spec()) == group_of(a_script(work=100.0)) == ""


def test_a_job_counts_once_the_newest_count_and_what_cannot_be_read_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(size_files, "MOST", 12)
    files = SizeFiles(tmp_path / "sizes")
    for at in range(17):
        files.keep("g", f"j-{at}", 1.0 + at)
    files.keep("g", "j-9", 0.5)
    files.keep("g", "j-10", float("inf"))
    again = SizeFiles(tmp_path / "sizes").of("g")
    assert len(again) == 12
    assert again[0] == 0.5
    assert again[-1] == 17.0
    path = tmp_path / "sizes" / "g.csv"
    path.write_text(path.read_text() + "j-x,much\nj-y,nan\nbroken\n")
    assert SizeFiles(tmp_path / "sizes").of("g") == again

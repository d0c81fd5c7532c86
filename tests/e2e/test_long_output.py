"""A job that prints without end, on nodes that write on the controller's disk: what is kept of it is bounded."""

from __future__ import annotations

import asyncio
import threading
import time

from sublet.runtime.controller.files import logs as output_keeper
from sublet.runtime.controller.files.logs import SLACK, cut_log, is_before
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.controller_api.views import ENDED
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings

MOST = 1 << 20
PRINTED = 64 << 20  # of an endless output, as much as a test needs
PATIENCE_S = 120.0
NOTE = 200


async def until(condition, what):
    end_s = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.1)


def test_a_job_that_runs_yes_leaves_no_more_than_the_bounds_on_the_disk(tmp_path):
    through = tmp_path / "through"
    run = ("bash", "-c", f"yes | head -c {PRINTED}; touch {through}; sleep 600")

    async def live():
        api = controller_from(Settings(state_dir=str(tmp_path / "state"), most_nodes=1))
        api._controller.logs.watchdog.most = MOST
        running = asyncio.create_task(api.run())
        try:
            await api.started()
            job_id = (await api.submit(JobSpec(name="yes", argv=run, cwd=str(tmp_path), sdk=False)))["job_id"]
            folder = tmp_path / "state" / "jobs" / job_id / "logs"

            async def bounded():
                sizes = [path.stat().st_size for path in folder.glob("*.log")]
                return through.exists() and 0 < sum(sizes) <= 2 * (MOST + SLACK) + NOTE

            async def ended():
                return (await api.job(job_id))["phase"] in ENDED

            await until(bounded, "what was printed stays")
            await api.cancel(job_id, now=True)
            await until(ended, "it never ended")
            assert await bounded()
        finally:
            await api.shutdown(end_jobs=True)
            await running

    asyncio.run(live())


def test_jobs_that_print_without_end_keep_no_loop_busy_and_leave_no_more_than_the_bounds_after_down(
    tmp_path, monkeypatch
):
    threads, runs = set(), (("yes",), ("bash", "-c", "yes | tr '\\n' x"), ("bash", "-c", "yes 1>&2"))

    def cut(path, most):
        threads.add(threading.current_thread().name)
        return cut_log(path, most)

    async def live():
        monkeypatch.setattr(output_keeper, "cut_log", cut)
        api = controller_from(Settings(state_dir=str(tmp_path / "state"), most_nodes=len(runs)))
        api._controller.logs.watchdog.most = MOST
        running = asyncio.create_task(api.run())
        try:
            await api.started()
            specs = [JobSpec(name=f"yes{at}", argv=run, cwd=str(tmp_path), sdk=False) for at, run in enumerate(runs)]
            ids = [(await api.submit(spec))["job_id"] for spec in specs]
            folders = [tmp_path / "state" / "jobs" / job_id / "logs" for job_id in ids]

            async def all_were_cut():
                return all(list(folder.glob("*.before.log")) for folder in folders)

            await until(all_were_cut, "nothing is cut")
            assert all(name.startswith("logs") for name in threads), threads
        finally:
            await api.shutdown(end_jobs=True)
            await running
        for folder in folders:
            workers = len([path for path in folder.glob("*.log") if not is_before(path)])
            size = sum(path.stat().st_size for path in folder.glob("*.log"))
            assert 0 < size <= workers * (2 * (MOST + SLACK) + NOTE)

    asyncio.run(live())

"""A job that prints without end, on nodes that write on the controller's disk: what is kept of it is bounded."""

from __future__ import annotations

import asyncio
import time

from sublet.runtime.controller.long_output import SLACK
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
        api._controller.logs.most = MOST
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

"""One job under a real controller on the local provider, with a plan that gives it another batch as it goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sublet.domain.budget import Budget
from sublet.domain.plan import Plan, Snapshot, arrival
from sublet.planning.draft import Draft
from sublet.runtime.controller.core.loop import Controller
from sublet.runtime.controller.host import HostServices, Options
from sublet.runtime.controller.money.timekeeping import clock_from
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.private import private_folder
from sublet.runtime.providers.local.build import build
from sublet.runtime.settings import Settings, settings_to_json
from sublet.runtime.store import Store

__all__ = ["ByProgress", "planned"]

LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class ByProgress:
    """A policy: one GPU for every job, and the batch that goes with the part of it that is done."""

    batch_at: Callable[[float], int]

    def decide(self, snapshot: Snapshot) -> Plan:
        """Looks again soon: progress is no event."""
        draft = Draft(snapshot)
        for state in [*snapshot.active.values(), *snapshot.waiting.by(arrival)]:
            share = state.done_at(snapshot.now_s) / state.job.work
            pool = state.shape.pool if state.shape is not None else draft.pool_with_room(state.job, 1)
            if pool is not None:
                draft.give(state, pool, 1, batch=self.batch_at(share))
        return draft.plan(snapshot.now_s + LOOK_S)


async def planned(
    batch_at: Callable[[float], int],
    state_dir: Path,
    argv: tuple[str, ...],
    env: Mapping[str, str],
    cwd: Path,
    patience_s: float,
) -> None:
    """The job, from submission to its end."""
    private_folder(state_dir)
    settings = Settings(state_dir=str(state_dir), most_nodes=1)
    store = Store(state_dir / "log.sqlite")
    clock = clock_from(store, settings.speedup)
    setup = build(settings, clock, store)  # by hand: entry points need a package that is installed
    engine = LocalEngine(setup.address, lease_s=setup.lease_s, port_field=setup.port_field)
    options = Options(
        budget=Budget(),
        limits=dict(setup.limits),
        rates=setup.rates,
        decide_limit_s=settings.decide_limit_s,
        settings=settings_to_json(settings),
    )
    host = HostServices(state_dir=state_dir, clock=clock)
    controller = Controller(store, setup.provider, engine, ByProgress(batch_at), host=host, options=options)
    api = ControllerApi(controller, settings, warm=setup.warm)
    running = asyncio.create_task(api.run())
    try:
        await api.started()
        spec = JobSpec(name="gpt", argv=argv, cwd=str(cwd), env=env)
        job_id = (await api.submit(spec))["job_id"]
        ends_s = time.monotonic() + patience_s
        while (view := await api.job(job_id))["phase"] not in ("finished", "failed"):
            if time.monotonic() > ends_s or running.done():
                break
            await asyncio.sleep(0.1)
        if view["phase"] != "finished":
            logs = "".join(path.read_text()[-2000:] for path in (state_dir / "jobs" / job_id / "logs").glob("*.log"))
            raise RuntimeError(f"the job is {view['phase']}: {view['error']}\n{logs}")
    finally:
        await api.shutdown(end_jobs=True)
        await running

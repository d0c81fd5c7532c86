"""Spares in the runtime: nodes that are held and have no worker, so that other ones pause nobody."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sublet.domain.plan import Plan
from sublet.domain.shape import Grid, Shape
from sublet_lab.memory_cloud import Training
from tests.rigs.story import Story, a_spec, phase, trained, until


@dataclass
class WithSpares:
    """One copy, and so many GPUs beside it."""

    spares: int = 1

    def decide(self, snapshot):
        gpus = 1 + self.spares
        jobs = [*snapshot.active.values(), *snapshot.waiting.by(lambda state: 0.0)]
        shapes = {state.job.id: Shape("T4x1:spot", gpus, grid=Grid(1)) for state in jobs}
        return Plan(shapes=shapes, hold={"spot": gpus}, ask_again_s=snapshot.now_s + 6.0)  # a tenth of a second


def test_other_spares_pause_nobody_and_one_steps_in_where_a_copy_is_lost(tmp_path):
    story = Story(tmp_path)
    story.policy = WithSpares()
    story.cloud.jobs["j-1"] = Training(steps=400, step_s=0.01)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=4))
            await trained(api, "j-1", 5)
            record, kernel = api._controller.table.records["j-1"], api._controller.kernel

            async def holds_three():
                return kernel.jobs["j-1"].gpus == 3

            first, round_ = set(record.group.workers), record.group.round
            story.policy.spares = 2
            await until(holds_three, "no spare came")
            assert (set(record.group.workers), record.group.round) == (first, round_)  # the same one trains on
            (worker,) = record.group.workers.values()
            story.cloud.take(worker.node_id)
            view = await phase(api, "j-1", "finished", "failed")
            assert (view["phase"], view["step"]) == ("finished", 400), view["error"]

    asyncio.run(live())

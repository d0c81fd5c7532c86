"""One seed: jobs, users and controllers live with the faults of their story, then in peace; then comes the verdict."""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sublet.domain.plan import Plan, Snapshot
from sublet_lab.world import faults
from sublet_lab.world.cloud import Cloud, Node
from sublet_lab.world.controllers import Complaints, Controllers
from sublet_lab.world.dear import beyond_what_is_left
from sublet_lab.world.disk import Disk
from sublet_lab.world.endings import count_ends
from sublet_lab.world.heap import Livelock, World
from sublet_lab.world.laws import Broken, Laws
from sublet_lab.world.machine import trip_wired
from sublet_lab.world.network import Network
from sublet_lab.world.node import Site, WorldNode
from sublet_lab.world.offered import agent_facts, cloud_of
from sublet_lab.world.records import count_kept, digest_of, history_of
from sublet_lab.world.stage import Stage
from sublet_lab.world.story import Story
from sublet_lab.world.truth import JobTruth, Truth
from sublet_lab.world.users import Users
from sublet_lab.world.verdict import all_settled, budget_is_spent, check_end, check_steady, unsettled
from sublet_lab.world.worker import Meetings

BLOCKS = 6  # of every model that is cut
PEACE_S = 3600.0  # after the last fault, until everything must have come to its end
SHUTDOWN_S = 180.0
OFTEN = 64  # events between two looks whether all is over
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - logs and secrets of jobs are files still, of a folder of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a seed."""

    story: Story
    broken: Broken | None
    seconds: float  # of the world
    events: int
    commits: int
    lives: int  # of controllers
    hits: dict[str, int]
    effects: dict[str, int]
    ends: dict[str, int]  # of jobs: how many, by how they ended
    digest: str  # of everything that the controllers wrote


@dataclass
class Life:
    """The parts of a life, put together; `live` it once."""

    story: Story
    watch: Callable[[Life], None] = lambda _: None  # before it begins, for a look from outside
    keep_history: bool = False
    stage: Stage = field(init=False)
    history: list[tuple[float, str, str]] = field(default_factory=list)  # (cloud time, kind and whose, text), if kept

    def live(self) -> Outcome:
        """Until the verdict."""
        folder = Path(tempfile.mkdtemp(prefix="world-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
        self._folder = folder
        with trip_wired(), _complaints() as complaints:
            try:
                self._build(folder, complaints)
                self.watch(self)
                broken = self._run()
                return self._outcome(broken)
            finally:
                if self.keep_history:
                    self.history = history_of(self.stage)
                for process in self.stage.controllers.processes:
                    process.kill()
                    process.bury()
                self.stage.disk.close()
                shutil.rmtree(folder, ignore_errors=True)

    def _build(self, folder: Path, complaints: Complaints) -> None:
        story = self.story
        world = World(story.seed)
        network, truth = Network(world), Truth()
        disk = Disk()
        self.site = Site(world, network, Meetings(world, network, truth))
        self.cloud: Cloud = cloud_of(self.story, world, self._boot)
        controllers = Controllers(story, world, network, disk, self.cloud, folder)
        controllers.storage, controllers.carried = self.site.storage, truth.carried
        disk.on_crash = controllers.fence.on_crash = controllers.crash_of
        controllers.policy.planned = partial(_note_what_is_dear, truth)
        users = Users(story, world, controllers)
        for plan in story.jobs:
            truth.jobs[f"{plan.name}-1"] = JobTruth(
                steps=plan.steps,
                step_s=plan.step_s,
                boot_s=plan.boot_s,
                write_s=plan.write_s,
                sdk=plan.sdk,
                fails=plan.fails,
                blocks=BLOCKS if plan.stages > 1 else 0,
            )
        self.stage = Stage(story, world, network, disk, self.cloud, controllers, users, self.site.meetings)
        self.laws = Laws(self.stage, complaints)
        self.cloud.attended, self.cloud.lease_s = lambda: _is_attended(self.stage), story.lease_s
        faults.schedule(self.stage)

    def _boot(self, node_id: str, token: str, boot_s: float, gone: Callable[[], None]) -> Node:
        facts = agent_facts(self.story, node_id, token, boot_s)
        return WorldNode(self.site, facts, lambda: self._agent_gone(node_id, gone))

    def _agent_gone(self, node_id: str, gone: Callable[[], None]) -> None:
        for instance in self.cloud.alive():
            if instance.node_id == node_id and instance.node is not None and instance.node.ended_for_lease:
                self.laws.lease_ended(instance)
        gone()

    # ------------------------------------------------------------------ its course

    def _run(self) -> Broken | None:
        try:
            self.stage.controllers.start()
            self._with_faults()
            self._in_peace()
            self._to_its_end()
        except Broken as broken:
            return broken
        except Livelock as livelock:
            return Broken("B", f"{livelock} at {self.stage.world.age_s:.3f} s")
        return None

    def _with_faults(self) -> None:
        world = self.stage.world
        until_s = world.began_s + self.story.span_s + 20.0
        world.run(until_s, each=self.laws.each, stop=lambda: all_settled(self.stage), often=OFTEN)

    def _in_peace(self) -> None:
        stage, world = self.stage, self.stage.world
        stage.calm_down()

        def over() -> bool:
            return all_settled(stage) or budget_is_spent(stage)

        world.run(world.now_s + PEACE_S, each=self.laws.each, stop=over, often=OFTEN)
        check_steady(stage, self.laws)  # before L: a choice that is never made leaves no job its end
        if not over():
            self.laws.break_law("L", f"no end {PEACE_S:.0f} s after the last fault: {unsettled(stage)}")

    def _to_its_end(self) -> None:
        stage, world, controllers = self.stage, self.stage.world, self.stage.controllers
        process, api, running = controllers.process, controllers.api, controllers.running
        assert process is not None
        assert api is not None
        assert running is not None
        stage.ending = True
        process.spawn(api.shutdown())
        from_s = max(world.now_s, stage.unpaid_until_s)  # what the cloud does not end yet is waited for
        world.run(from_s + SHUTDOWN_S, each=self.laws.each, stop=running.done)
        if not running.done():
            self.laws.break_law("L", f"the shutdown takes more than {SHUTDOWN_S:.0f} s")
        if controllers.fence.late & {instance.node_id for instance in self.cloud.alive()}:
            lease_s = 2 * self.story.lease_s + SHUTDOWN_S
            stage.most_under_grains += self.cloud.burn_grains_per_s() * lease_s
            world.run(world.now_s + lease_s)  # they were rented behind everybody's back, and end with their lease
        if controllers.controller is not None:
            check_end(stage, self.laws, controllers.controller)

    def _outcome(self, broken: Broken | None) -> Outcome:
        stage = self.stage
        count_kept(stage)
        return Outcome(
            story=self.story,
            broken=broken,
            seconds=stage.world.age_s,
            events=stage.world.steps,
            commits=stage.disk.commits,
            lives=stage.controllers.lives,
            hits=dict(stage.hits),
            effects=dict(stage.effects),
            ends=dict(count_ends(stage)),
            digest=digest_of(stage, self._folder),
        )


def _is_attended(stage: Stage) -> bool:
    """A controller is there, has recovered, and is awake."""
    process = stage.controllers.process
    return stage.controllers.ready and process is not None and process.stopped_until_s <= stage.world.now_s


def live(story: Story) -> Outcome:
    """One life. Garbage is collected between lives, not in them: dead coroutines would speak once more."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return Life(story).live()
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _complaints() -> Iterator[Complaints]:
    complaints, ours, theirs = Complaints(), logging.getLogger("sublet"), logging.getLogger("asyncio")
    before = (ours.propagate, ours.level, theirs.level)
    ours.addHandler(complaints)
    ours.propagate = False
    ours.setLevel(logging.ERROR)
    theirs.setLevel(logging.CRITICAL)
    try:
        yield complaints
    finally:
        ours.removeHandler(complaints)
        ours.propagate = before[0]
        ours.setLevel(before[1])
        theirs.setLevel(before[2])


def _note_what_is_dear(truth: Truth, plan: Plan, snapshot: Snapshot) -> None:
    if wrong := beyond_what_is_left(plan, snapshot):
        truth.complaints.append(("U", wrong))

"""The lives of controllers, one after the other, over one disk: what `sublet up` puts together, in a world."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from sublet.errors import SubletError
from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.disk import Disk as AgentDisk
from sublet.runtime.archive import refuse_lost_log
from sublet.runtime.controller.core.loop import Controller
from sublet.runtime.controller.host import HostServices
from sublet.runtime.controller.money.timekeeping import clock_from
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.store import Store
from sublet_lab.world.border import Border
from sublet_lab.world.cloud import Cloud, Struck, nobody
from sublet_lab.world.disk import Disk
from sublet_lab.world.fence import Fence, WatchedProvider
from sublet_lab.world.heap import Crash, Process, World
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.machine import HostClock, WorldRng, WorldWall
from sublet_lab.world.network import CONTROLLER, Network
from sublet_lab.world.rigged import (
    LOG,
    Carried,
    Heard,
    MoodyPolicy,
    StateFolder,
    engine_of,
    options_of,
    rig_files,
    settings_of,
)
from sublet_lab.world.story import Story

PAUSES_S = (0.5, 2.0, 10.0, 50.0)  # until the next one is started
HANGS_S = 150.0  # that a policy may be silent for


class Complaints(logging.Handler):
    """Errors in the controller's own log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[tuple[str, BaseException | None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, Crash):
            self.seen.append((record.getMessage(), error))


class Controllers:
    """`process`, `controller` and `api` are those of the present life; `ended` is told when one is gone for good."""

    def __init__(self, story: Story, world: World, network: Network, disk: Disk, cloud: Cloud, folder: Path) -> None:
        self._story, self._world, self._network, self._disk, self._cloud = story, world, network, disk, cloud
        self._folder, self._rng = folder, world.stream("restarts")
        self.storage: AgentDisk = DISK  # where it looks for what scripts have saved
        self.files = StateFolder(disk)  # beside the store: its archive
        self.fence = Fence(disk)
        self.policy = MoodyPolicy(story.policy)
        self.clock = HostClock()
        self.lives = 0
        self.processes: list[LoopProcess] = []  # all that ever were
        self.process: LoopProcess | None = None
        self.controller: Controller | None = None
        self.api: ControllerApi | None = None
        self.border: Border | None = None
        self.running: asyncio.Task[None] | None = None
        self.up_since_s = world.now_s
        self.away_since_s: float | None = world.now_s
        self.without_flags = False  # the next start has none
        self.bare: Struck = nobody  # told of every start that finds none, and a store
        self.started: list[Callable[[float], None]] = []  # told of every start: how long there was no controller
        self.carried: Carried = lambda *_: None  # told of every checkpoint that came here
        self.heard: Heard | None = None  # told of everything that passes between controllers and agents
        self.refusal: SubletError | None = None  # why no controller can start any more

    @property
    def alive(self) -> bool:
        """A controller runs."""
        return self.process is not None and not self.process.dead

    @property
    def ready(self) -> bool:
        """... and has recovered."""
        return self.alive and self.api is not None and self.api.is_started

    def start(self) -> None:
        """As `sublet up` does."""
        if self.alive:
            return
        world = self._world
        self._network.switch_on(CONTROLLER)
        process = self.process = LoopProcess(world, f"controller {self.lives}", CONTROLLER, self._network.listen)
        self.processes.append(process)
        self.lives += 1
        away_s = 0.0 if self.away_since_s is None else world.now_s - self.away_since_s
        self.away_since_s, self.up_since_s = None, world.now_s
        for tell in self.started:
            tell(away_s)
        try:
            self._assemble(process)
        except Crash:
            return
        except SubletError as error:
            self.refusal = error

    def _assemble(self, process: LoopProcess) -> None:
        story, world = self._story, self._world
        wall, rng = WorldWall(process, self.clock), WorldRng(world, "controller")
        refuse_lost_log(LOG.parent, files=self.files)
        store = Store(LOG, connect=lambda _: self._disk.connect(process))
        bare = self.without_flags and bool(store.last_seq())
        if bare:
            self.bare()
        settings = settings_of(story, self._folder, store, bare=bare)
        clock = clock_from(store, settings.speedup, wall)
        host = HostServices(
            state_dir=self._folder,
            clock=clock,
            rng=rng,
            files=self.files,
            disk=self.storage,
            paces=story.paces,
            aside=lambda work: self._think(process, work),
        )
        options = options_of(story, settings, self._cloud)
        provider = WatchedProvider(self._cloud.provider(process, clock, store), process, self.fence)
        controller = self.controller = Controller(
            store, provider, engine_of(story, self.lives, self.heard), self.policy, host=host, options=options
        )
        rig_files(controller, self.carried)
        self.api = ControllerApi(controller, settings)
        self.border = Border(world, process, self.api) if story.http else None
        self.running = process.spawn(self.api.run())

    def _think(self, process: LoopProcess, work: Callable[[], None]) -> None:
        if self.policy.hangs:
            self.policy.hangs -= 1
            self.policy.hung()
            self._world.after(HANGS_S, process.loop.begin_thread, work)
        else:
            process.loop.begin_thread(work, self._story.think_s)

    def succeed(self, for_s: float) -> bool:
        """The present one sleeps; meanwhile another begins on the same disk and at the same address."""
        process, running = self.process, self.running
        if process is None or running is None or not self.ready:
            return False
        self.fence.sleep(process, running)
        process.stop_for(for_s)
        self._network.process_gone(process.loop, silent=True)
        self.process, self.away_since_s = None, self._world.now_s
        self._world.after(self._rng.choice(PAUSES_S), self.start)
        return True

    def crash_of(self, process: Process) -> None:
        """A process is gone in the middle of a commit."""
        if isinstance(process, LoopProcess):
            self.crash(process)

    def crash(self, process: LoopProcess, *, silent: bool = False, machine: bool = False) -> None:
        """It is gone; with `silent` the network does not say so, with `machine` the whole machine starts anew."""
        if process.dead:
            return
        process.kill()
        self._network.process_gone(process.loop, silent=silent or machine)
        if process is not self.process:
            return
        if machine:
            self._network.off.add(CONTROLLER)
            self._cloud.restart_machine()
            self.clock.boots, self.clock.on_s = self.clock.boots + 1, self._world.now_s
        self.away_since_s = self._world.now_s
        self._world.after(self._rng.choice(PAUSES_S), self.start)

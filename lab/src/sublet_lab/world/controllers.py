"""The lives of controllers, one after the other, over one disk: what `sublet up` puts together, in a world."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.errors import SubletError
from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.disk import Disk as AgentDisk
from sublet.runtime.archive import refuse_lost_log
from sublet.runtime.controller.core.loop import Controller
from sublet.runtime.controller.files.checkpoints import Anchor, Pulling
from sublet.runtime.controller.host import HostServices, Options
from sublet.runtime.controller.memory.table import job_of
from sublet.runtime.controller.money.timekeeping import clock_from
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import budget_from
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.engines.protocol import Hear
from sublet.runtime.last_run import with_budget_in_force
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store
from sublet.wire.files import Saved
from sublet.wire.messages import ToAgent, ToController
from sublet_lab.world.border import Border
from sublet_lab.world.cloud import Cloud, Struck, nobody
from sublet_lab.world.disk import Disk
from sublet_lab.world.fence import Fence, WatchedProvider
from sublet_lab.world.heap import Crash, Process, World
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.machine import HostClock, MemoryFiles, WorldRng, WorldWall
from sublet_lab.world.network import CONTROLLER, Network
from sublet_lab.world.story import Story
from sublet_lab.world.working import pack_work

__all__ = ["ADDRESS", "Complaints", "Controllers", "MoodyPolicy"]

ADDRESS = "tcp:127.0.0.1:7000"
LOG = Path("log.sqlite")
PAUSES_S = (0.5, 2.0, 10.0, 50.0)  # until the next one is started
HANGS_S = 150.0  # that a policy may be silent for
DEFAULT_BURN_USD_PER_H = 2.0  # of a first start without flags


Nonsense = Callable[[Plan, Snapshot], object]  # what a policy says instead of its plan
Heard = Callable[[int, str, str, object], None]  # (which controller, "->" or "<-", node, message)


class _OverheardEngine(LocalEngine):
    """The shipped one, with a listener."""

    def __init__(self, address: str, *, lease_s: float, heard: Callable[[str, str, object], None]) -> None:
        super().__init__(address, lease_s=lease_s)
        self._heard = heard

    async def open(self, hear: Hear) -> None:
        def pass_up(node_id: str, message: ToController) -> None:
            self._heard("<-", node_id, message)
            hear(node_id, message)

        await super().open(pass_up)

    def send(self, node_id: str, message: ToAgent) -> bool:
        sent = super().send(node_id, message)
        self._heard("->" if sent else "-x", node_id, message)
        return sent


class _StateFolder(MemoryFiles):
    """The folder of the store, unless it was moved away."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def names(self, folder: Path) -> list[str]:
        if self._disk.missed is None:
            return sorted([LOG.name, *super().names(folder)])
        self._disk.missed()
        return super().names(folder)


class MoodyPolicy:
    """A policy that fails, or falls silent, when it is told to."""

    def __init__(self, name: str) -> None:
        self._real = cast(Policy, cast(type, plugins.load("sublet.policies", name))())
        self.fails, self.hangs = 0, 0
        self._nonsense: list[Nonsense] = []
        self._struck: Callable[[], None] = lambda: None
        self.failed: Struck = nobody  # told of every thought that failed
        self.hung: Struck = nobody  # ... or was silent

    def talk_nonsense(self, answers: Sequence[Nonsense], struck: Callable[[], None]) -> None:
        """The next answers are these, made of what the real one says; `struck` is told of each."""
        self._nonsense, self._struck = list(answers), struck

    def decide(self, snapshot: Snapshot) -> Plan:
        """As the real one, or not at all."""
        if self.fails:
            self.fails -= 1
            self.failed()
            raise ZeroDivisionError("a bug of a policy's own")
        plan = self._real.decide(snapshot)
        if not self._nonsense:
            return plan
        self._struck()
        return cast(Plan, self._nonsense.pop()(plan, snapshot))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


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
        self.files = _StateFolder(disk)  # beside the store: its archive
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
        self.carried: Callable[[Saved, Anchor], None] = lambda *_: None  # told of every checkpoint that came here
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
        settings = self._settings(store)
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
        options = Options(
            budget=budget_from(settings),
            limits={offer.id: Limit(max_nodes=story.most_nodes) for offer in self._cloud.offers},
            rates=self._cloud.rates,
            elsewhere=story.travels,
        )
        provider = WatchedProvider(self._cloud.provider(process, clock, store), process, self.fence)
        controller = self.controller = Controller(
            store, provider, self._engine(), self.policy, host=host, options=options
        )
        controller.sync.packer = pack_work
        if controller.sync.pulling is not None:
            pulling = controller.sync.pulling
            pulling.saved = partial(self._carried, pulling, pulling.saved)
        self.api = ControllerApi(controller, settings)
        self.border = Border(world, process, self.api) if story.http else None
        self.running = process.spawn(self.api.run())

    def _carried(self, pulling: Pulling, tell: Callable[[Saved, float], None], saved: Saved, ago_s: float) -> None:
        """The controller says of a checkpoint that it is saved."""
        self.carried(saved, pulling.anchor(job_of(saved.worker_id)))
        tell(saved, ago_s)

    def _engine(self) -> LocalEngine:
        lease_s, heard, life = self._story.lease_s, self.heard, self.lives
        if heard is None:
            return LocalEngine(ADDRESS, lease_s=lease_s)
        return _OverheardEngine(
            ADDRESS, lease_s=lease_s, heard=lambda way, node_id, message: heard(life, way, node_id, message)
        )

    def _settings(self, store: Store) -> Settings:
        """The settings of the flags; without any, those last in force."""
        story = self._story
        given = Settings(
            state_dir=str(self._folder),
            policy=story.policy,
            purse_usd=story.purse_usd,
            average_usd_per_h=story.average_usd_per_h,
            mix_markets=story.mixed,
        )
        if not self.without_flags or not store.last_seq():
            return given
        self.bare()
        bare = replace(given, purse_usd=None, average_usd_per_h=None, burn_usd_per_h=DEFAULT_BURN_USD_PER_H)
        return with_budget_in_force(bare, store)

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

"""The parts of a controller that a world rigs: its policy, engine, folder, settings, and what it carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.runtime.controller.core.loop import Controller
from sublet.runtime.controller.files.checkpoints import Anchor, Pulling
from sublet.runtime.controller.host import Options
from sublet.runtime.controller.memory.table import job_of
from sublet.runtime.controller_api.assemble import budget_from
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.engines.protocol import Hear
from sublet.runtime.last_run import with_budget_in_force
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store
from sublet.wire.files import Saved
from sublet.wire.messages import ToAgent, ToController
from sublet_lab.world.cloud import Cloud, Struck, nobody
from sublet_lab.world.disk import Disk
from sublet_lab.world.machine import MemoryFiles
from sublet_lab.world.story import Story
from sublet_lab.world.working import pack_work

ADDRESS = "tcp:127.0.0.1:7000"
LOG = Path("log.sqlite")
DEFAULT_BURN_USD_PER_H = 2.0  # of a first start without flags

Nonsense = Callable[[Plan, Snapshot], object]  # what a policy says instead of its plan
Heard = Callable[[int, str, str, object], None]  # (which controller, "->" or "<-", node, message)
Carried = Callable[[Saved, Anchor], None]  # (a checkpoint, where it is now)


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


class StateFolder(MemoryFiles):
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
        self.planned: Callable[[Plan, Snapshot], None] = lambda *_: None

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
        self.planned(plan, snapshot)
        if not self._nonsense:
            return plan
        self._struck()
        return cast(Plan, self._nonsense.pop()(plan, snapshot))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def engine_of(story: Story, life: int, heard: Heard | None) -> LocalEngine:
    """The shipped one, overheard where somebody listens."""
    if heard is None:
        return LocalEngine(ADDRESS, lease_s=story.lease_s)
    return _OverheardEngine(ADDRESS, lease_s=story.lease_s, heard=partial(heard, life))


def settings_of(story: Story, folder: Path, store: Store, *, bare: bool) -> Settings:
    """The settings of the flags; `bare` of them, those last in force."""
    given = Settings(
        state_dir=str(folder),
        policy=story.policy,
        purse_usd=story.purse_usd,
        average_usd_per_h=story.average_usd_per_h,
        mix_markets=story.mixed,
    )
    if not bare:
        return given
    first = replace(given, purse_usd=None, average_usd_per_h=None, burn_usd_per_h=DEFAULT_BURN_USD_PER_H)
    return with_budget_in_force(first, store)


def options_of(story: Story, settings: Settings, cloud: Cloud) -> Options:
    """Its budget, limits and prices."""
    return Options(
        budget=budget_from(settings),
        limits={offer.id: Limit(max_nodes=story.most_nodes) for offer in cloud.offers},
        rates=cloud.rates,
        elsewhere=story.travels,
    )


def rig_files(controller: Controller, carried: Carried) -> None:
    """Files are packed from memory, and `carried` is told of each checkpoint that is said to be saved."""
    controller.sync.packer = pack_work
    if (pulling := controller.sync.pulling) is not None:
        pulling.saved = partial(_say_saved, pulling, pulling.saved, carried)


def _say_saved(
    pulling: Pulling, tell: Callable[[Saved, float], None], carried: Carried, saved: Saved, ago_s: float
) -> None:
    carried(saved, pulling.anchor(job_of(saved.worker_id)))
    tell(saved, ago_s)

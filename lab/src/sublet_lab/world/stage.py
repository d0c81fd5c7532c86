"""Targets of faults, and facts of them for laws: the parts of one life, and the disturbed ones with their ends."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sublet_lab.world.cloud import Cloud
from sublet_lab.world.controllers import Controllers
from sublet_lab.world.disk import Disk
from sublet_lab.world.ec2 import Ec2Cloud
from sublet_lab.world.heap import World
from sublet_lab.world.meetings import Meetings
from sublet_lab.world.network import Network
from sublet_lab.world.story import Fault, Story
from sublet_lab.world.truth import Truth
from sublet_lab.world.users import Users


@dataclass
class Stage:
    """The stage of one life."""

    story: Story
    world: World
    network: Network
    disk: Disk
    cloud: Cloud
    controllers: Controllers
    users: Users
    meetings: Meetings
    hits: Counter[str] = field(default_factory=Counter)  # by kind of fault
    effects: Counter[str] = field(default_factory=Counter)
    parted_until_s: dict[str, float] = field(default_factory=dict)  # by node
    unpaid_until_s: float = 0.0  # nodes may not be given back until then, whatever the controller does
    most_over_grains: float = 0.0  # that the ledger may be above the bill: the end of a machine may be unknown
    most_under_grains: float = 0.0  # ... and below it: what went down with it had slept, or not yet come back
    forgotten_grains: float = 0.0  # spent after a copy of the store that was put back: no budget knows of it
    foreign: set[str] = field(default_factory=set)  # jobs of which the store says what no rule allows, for a while
    clock_off_s: float = 0.0  # by which cloud time may be ahead since: prices then change at another time of a record
    burn_at_boot: float = 0.0  # grains a second that all nodes cost when the controller's machine last went down
    calm: bool = False  # no more faults
    before_peace: tuple[int, int, int] = (0, 0, 0)  # commits, calls of providers and requests to EC2 until then
    under_way: frozenset[int] = frozenset()  # of these calls, by number: those that are answered in peace
    repairs: list[Callable[[], None]] = field(default_factory=list)  # of what is not mended by itself, before the peace
    ending: bool = False  # the controller was asked to end
    victim: str = ""  # of the present fault, for a look from outside
    on_fault: Callable[[Fault, bool | None], None] = lambda *_: None  # ... with an effect? None = it may come later
    on_effect: Callable[[str], None] = lambda _: None  # it came

    @property
    def truth(self) -> Truth:
        """Of all jobs."""
        return self.meetings.truth

    def later(self, kind: str, also: Callable[[], None] = lambda: None) -> Callable[[], None]:
        """To be called whenever a fault of this kind has an effect; it counts once."""
        told = False

        def struck() -> None:
            nonlocal told
            also()
            if not told:
                told = True
                self.effects[kind] += 1
                self.on_effect(kind)

        return struck

    def not_given_back(self, for_s: float) -> Callable[[], None]:
        """Something was to be given back, or looked for, and could not: it is tried again within `for_s`."""

        def forgive() -> None:
            self.unpaid_until_s = max(self.unpaid_until_s, self.world.now_s + for_s)

        return forgive

    def calm_down(self) -> None:
        """Nothing goes wrong any more, and what had gone wrong is mended."""
        self.calm = True
        requests = self.cloud.calls if isinstance(self.cloud, Ec2Cloud) else 0
        self.before_peace = (self.disk.commits, self.controllers.fence.called, requests)
        self.under_way = frozenset(self.controllers.fence.under_way)
        self.controllers.fence.calm()
        self.cloud.calm()
        self.disk.calm()
        self.network.calm()
        for repair in self.repairs:
            repair()
        now_s = self.world.now_s
        self.parted_until_s = {host: min(until_s, now_s) for host, until_s in self.parted_until_s.items()}


Kind = Callable[[Stage, random.Random], bool | None]  # a fault: whether it had an effect; None = that may come later

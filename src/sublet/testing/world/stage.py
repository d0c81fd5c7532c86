"""What faults act upon, and what laws must know of it: the parts of one life, and what is disturbed until when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sublet.testing.world.cloud import Cloud
from sublet.testing.world.controllers import Controllers
from sublet.testing.world.disk import Disk
from sublet.testing.world.heap import World
from sublet.testing.world.meetings import Meetings
from sublet.testing.world.network import Network
from sublet.testing.world.story import Fault, Story
from sublet.testing.world.truth import Truth
from sublet.testing.world.users import Users

__all__ = ["Stage"]


@dataclass
class Stage:
    """Of one life."""

    story: Story
    world: World
    network: Network
    disk: Disk
    cloud: Cloud
    truth: Truth
    controllers: Controllers
    users: Users
    meetings: Meetings
    hits: Counter[str] = field(default_factory=Counter)  # by kind of fault
    effects: Counter[str] = field(default_factory=Counter)
    parted_until_s: dict[str, float] = field(default_factory=dict)  # by node
    unpaid_until_s: float = 0.0  # nodes may not be given back until then, whatever the controller does
    most_over_grains: float = 0.0  # that the ledger may be above the bill: nobody knows when a machine went down
    most_under_grains: float = 0.0  # ... and below it: what went down with it had slept, or not yet come back
    forgotten_grains: float = 0.0  # spent after a copy of the store that was put back: no purse knows of it
    foreign: set[str] = field(default_factory=set)  # jobs of which the store says what no rule allows, for a while
    burn_at_boot: float = 0.0  # grains a second that all nodes cost when the controller's machine last went down
    calm: bool = False  # no more faults
    ending: bool = False  # the controller was asked to end
    on_fault: Callable[[Fault, bool], None] = lambda *_: None  # for whoever looks on: what struck, with an effect?

    def calm_down(self) -> None:
        """Nothing goes wrong any more, and what had gone wrong is mended."""
        self.calm = True
        self.cloud.calm()
        self.disk.calm()
        self.network.calm()
        now_s = self.world.now_s
        self.parted_until_s = {host: min(until_s, now_s) for host, until_s in self.parted_until_s.items()}

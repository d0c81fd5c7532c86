"""A cloud of the world, as faults and laws see it: it can be made to do wrong, and it keeps books of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from sublet.domain.money import Price
from sublet.domain.offer import Offer
from sublet.runtime.clock import Clock
from sublet.runtime.providers.pacing import Rates
from sublet.runtime.providers.protocol import Provider
from sublet.runtime.store import Store
from sublet.wire.messages import ToController
from sublet_lab.world.heap import Struck, nobody
from sublet_lab.world.loop import LoopProcess

__all__ = ["Boot", "Cloud", "Instance", "Node", "NodeWorker", "Struck", "nobody"]


class NodeWorker(Protocol):
    """A process that trains, as faults see it."""

    id: str
    job_id: str
    hung: bool

    def exit(self, code: int) -> None:
        """It ends."""


class Node(Protocol):
    """A machine with an agent on it, as clouds, faults and laws see it."""

    stopped_until_s: float  # its agent
    overslept_s: float  # that it stood still beyond the end of its lease

    @property
    def workers(self) -> Sequence[NodeWorker]:
        """Those that run."""

    @property
    def connected(self) -> bool:
        """Its line to a controller stands, as far as it knows."""

    @property
    def noticed(self) -> bool:
        """Its agent was told, by its machine, that it will be taken."""

    @property
    def ended_for_lease(self) -> bool:
        """It went because it was not renewed."""

    def say(self, message: ToController) -> None:
        """On its line, as its agent would."""

    def switch_off(self) -> None:
        """Gone, without a word to anybody."""


Boot = Callable[[str, str, float, Callable[[], None]], Node]  # (node id, token, boot s, it has ended by itself)


@dataclass(eq=False)
class Instance:
    """A machine that was rented, and what it cost."""

    node_id: str
    offer_id: str
    token: str
    began_s: float
    visible_s: float
    ended_s: float | None = None
    ours: bool = False  # we gave it back
    alone: bool = False  # there was no controller when it ended, or to write that down
    node: Node | None = None


class Cloud(Protocol):
    """The faults and answers of every cloud of a world. Times are the world's."""

    attended: Callable[[], bool]  # whether a controller is there, and awake
    lease_s: float  # of what is rented
    ordered: dict[str, Offer]  # nodes, by controllers that ended before they had an answer

    @property
    def offers(self) -> Sequence[Offer]:
        """Its offers."""

    @property
    def keeps_records(self) -> bool:
        """The client is told the charges."""

    @property
    def rates(self) -> Rates:
        """How often its calls may be made."""

    def provider(self, process: LoopProcess, clock: Clock, store: Store) -> Provider:
        """As one controller sees it."""

    def alive(self) -> list[Instance]:
        """Instances that exist and are paid for."""

    def spent_grains(self) -> float:
        """Charges so far, by its own books."""

    def burn_grains_per_s(self) -> float:
        """The present rate of charges."""

    def nobody_wrote_down(self, node_ids: Collection[str]) -> None:
        """The log knows of no end of these, though some may have ended."""

    @property
    def slack_grains(self) -> float:
        """By how much a ledger may be above the books, because the provider does not say what it charges."""

    @property
    def short_grains(self) -> float:
        """... and below them."""

    def steps_grains(self, off_s: float) -> float:
        """The allowed error of a bill where prices changed, for a clock that is off by so much."""

    @property
    def untold_grains(self) -> float:
        """By how much a ledger may be above the books, because the cloud does not say when something ended."""

    def notice(self, instance: Instance, in_s: float) -> None:
        """It will be taken back, as far as anybody knows."""

    def take(self, instance: Instance, *, told: bool) -> None:
        """It is gone; whether the cloud says so is another matter."""

    def lie(self, call: str, kind: str, for_s: float, struck: Struck = nobody) -> None:
        """Answers to `rent` (from the next on), `release` or `list` are wrong for a while.

        error | done, but an error | refused | slow | invisible
        """

    def sell_out(self, offer_id: str, for_s: float, struck: Struck = nobody) -> None:
        """Nothing more of it can be had for a while."""

    def reprice(self, offer_id: str, price: Price, struck: Struck = nobody) -> None:
        """From now on."""

    def restart_machine(self) -> None:
        """The controller's own machine starts anew."""

    def calm(self) -> None:
        """It keeps its word from now on."""

"""The context that parts of one controller share: its inbox, its jobs and nodes, the bill, alarms and the host."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from sublet.domain.shape import Placement
from sublet.runtime.controller.host import HostServices
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.memory.table import JobTable
from sublet.runtime.controller.money import Bill, passed_s
from sublet.runtime.controller.watch import Alarms
from sublet.runtime.group.workers import era_after
from sublet.runtime.store import MetaKey, Store


@dataclass(slots=True)
class NodeTable:
    """Facts of nodes beside the kernel, by id."""

    agents: set[str] = field(default_factory=set)  # nodes whose agent has come
    silent: set[str] = field(default_factory=set)  # nodes that were left, and have not come back
    gone: set[str] = field(default_factory=set)  # nodes that were lost or given back; an id is never used again
    doomed_s: dict[str, float] = field(default_factory=dict)  # node -> when it will be taken
    noticed_wall: dict[str, float] = field(default_factory=dict)  # node -> when its notice came
    hosts: dict[str, str] = field(default_factory=dict)  # node -> where others reach it
    jobs_on: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # that have, or had, workers

    def host_of(self, node_id: str) -> str:
        """Where others reach it; "" as long as its agent has not said so."""
        return self.hosts.get(node_id, "")

    def is_void(self, placement: Placement) -> bool:
        """A placement on a node that is gone or silent: the kernel hears of that next, and orders anew."""
        return any(node_id in self.gone or node_id in self.silent for node_id, _ in placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Of one controller."""

    inbox: Inbox
    table: JobTable
    nodes: NodeTable
    bill: Bill
    alarms: Alarms
    host: HostServices


class Identity(NamedTuple):
    """Of a controller."""

    server_id: str  # of its state directory
    era: int  # numbers its groups
    life: int  # controllers of this state directory before it

    @classmethod
    def of(cls, store: Store, host: HostServices) -> Identity:
        """Of the next controller over this store."""
        era = era_after(int(store.get(MetaKey.ERA) or 0), host.wall.unix(), passed_s(store, host.wall))
        server_id = store.get(MetaKey.SERVER_ID) or host.rng.token(8)
        return cls(server_id, era, life=int(store.get(MetaKey.LIFE) or 0))

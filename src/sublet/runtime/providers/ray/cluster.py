"""The Ray cluster as the provider sees it: its nodes, those that are drained, and a steward on each that we use.

A request that waits for resources at Ray makes its autoscaler get a node. Our waits are placement groups of this
process, so they end with it; a request to the autoscaler would stay when we are gone, and so would the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sublet.errors import BadInput, StewardGone, SubletError
from sublet.machine.wall import WALL, Wall
from sublet.runtime.providers.ray.config import NodeKind, RayNode
from sublet.runtime.providers.ray.steward import Steward, calling_ray, free_resources, gcs_client, import_ray

CALL_S = 30.0  # for an actor to answer; a cold node imports torch before it forks the first agent
GCS_S = 5.0  # for Ray's head to answer


class Cluster:
    """A connection to the cluster as its driver; one per process, as Ray will have it. Errors are of our own tree."""

    def __init__(self, address: str = "") -> None:
        self._ray, self._address = import_ray(), address
        self._gcs: Any = None

    @calling_ray("joining the Ray cluster")
    def connect(self) -> None:
        """Become a driver, unless this process is one already."""
        if not self._ray.is_initialized():
            main = threading.current_thread() is threading.main_thread()
            handler = signal.getsignal(signal.SIGTERM) if main else None
            try:
                self._ray.init(
                    address=self._address or os.environ.get("RAY_ADDRESS") or "auto",
                    log_to_driver=False,
                    configure_logging=False,
                )
            except (self._ray.exceptions.RayError, OSError, ValueError, RuntimeError) as error:
                hint = "ray start --head, or set RAY_ADDRESS to host:port of its head"
                raise BadInput("the Ray cluster", f"cannot be reached ({error})", hint=hint) from error
            finally:
                if handler is not None:
                    signal.signal(signal.SIGTERM, handler)  # Ray puts its own, and ours would never hear of it
        self._gcs = gcs_client(self._ray)

    @property
    @calling_ray("the address of this machine")
    def host(self) -> str:
        """The address of this machine for Ray's other nodes."""
        found: str = self._ray.util.get_node_ip_address()
        return found

    @calling_ray("a look at the Ray cluster")
    def look(self) -> list[RayNode]:
        """All nodes that live. Waits for Ray's head: call it in a thread."""
        free = free_resources(self._ray)
        drained: Mapping[str, int] = self._gcs.get_draining_nodes(timeout=GCS_S)
        return [
            RayNode(
                id=seen["NodeID"],
                host=seen["NodeManagerAddress"],
                total=seen["Resources"],
                free=free.get(seen["NodeID"], {}),
                labels=seen.get("Labels") or {},
                ends_unix_s=_seconds(drained.get(seen["NodeID"])),
            )
            for seen in self._ray.nodes()
            if seen["Alive"]
        ]

    # ------------------------------------------------------------------ stewards

    @calling_ray("a steward on a Ray node")
    def steward(self, ray_node: str, namespace: str, preload: Iterable[str], idle_s: float) -> Any:
        """The actor on this node, made if need be; it takes nothing from the node but memory."""
        strategies = self._ray.util.scheduling_strategies
        return (
            self._ray.remote(Steward)
            .options(
                name=f"sublet-steward-{ray_node}",
                namespace=namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=0,
                scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(ray_node, soft=False),
            )
            .remote(namespace=namespace, preload=tuple(preload), idle_s=idle_s)
        )

    @calling_ray("the stewards that there are")
    def stewards(self, namespace: str) -> dict[str, Any]:
        """Those that live, by Ray node: also what an earlier controller left."""
        found = {}
        for entry in self._ray.util.list_named_actors(all_namespaces=True):
            if entry["namespace"] == namespace and entry["name"].startswith("sublet-steward-"):
                ray_node = entry["name"].removeprefix("sublet-steward-")
                try:
                    found[ray_node] = self._ray.get_actor(entry["name"], namespace=namespace)
                except ValueError:  # it has ended since
                    continue
        return found

    async def call(self, steward: Any, verb: str, *facts: Any, wait_s: float = CALL_S) -> Any:
        """The result of this method of the actor; StewardGone if it never will come, NoAnswer if that is unknown."""
        with calling_ray(f"{verb!r} of a steward"):
            answer = getattr(steward, verb).remote(*facts)
            return await asyncio.wait_for(asyncio.wrap_future(answer.future()), wait_s)

    # ------------------------------------------------------------------ the autoscaler

    @calling_ray("a node of Ray's autoscaler")
    def ask_for(self, reserves: Mapping[str, float]) -> Any:
        """Wait at Ray for a node: what waits makes its autoscaler get one. Ends with this process, unlike a request."""
        return self._ray.util.placement_group([dict(reserves)], strategy="STRICT_PACK", name="sublet-asks")

    @calling_ray("what Ray's autoscaler has brought")
    def given(self, asked: Any) -> str:
        """The node that the wait has brought, and keeps for us; "" = none yet."""
        table = self._ray.util.placement_group_table(asked)
        return str(next(iter(table["bundles_to_node_id"].values()), "")) if table["state"] == "CREATED" else ""

    @calling_ray("the end of a wait at Ray's autoscaler")
    def withdraw(self, asked: Any) -> None:
        """Wait no longer, and give what was kept back."""
        self._ray.util.remove_placement_group(asked)


def _seconds(deadline_ms: int | None) -> float | None:
    """Seconds of the epoch; 0 for a node that is drained without a deadline."""
    if deadline_ms is None:
        return None
    return 0.0 if deadline_ms <= 0 or deadline_ms >= 1 << 62 else deadline_ms / 1000.0


WAIT_S = 900.0  # for a node to come, while jobs want it
KEEP_S = 60.0  # that a node which came is kept for us
SETTLE_S = 3.0  # until Ray has heard that what we gave back is free


@dataclass(slots=True)
class _Wait:
    offer_id: str
    group: Any
    until_s: float  # monotonic
    ray_node: str = ""  # that came


class StewardWaits:
    """All of one controller."""

    def __init__(self, cluster: Cluster, *, wall: Wall = WALL) -> None:
        self._cluster, self._wall = cluster, wall
        self._waits: list[_Wait] = []

    def count(self, offer_id: str) -> int:
        """How many nodes of this offer we wait for, or keep."""
        return sum(wait.offer_id == offer_id for wait in self._waits)

    def came(self, offer_id: str) -> list[str]:
        """Ray nodes that came, and are kept for us."""
        return [wait.ray_node for wait in self._waits if wait.offer_id == offer_id and wait.ray_node]

    async def begin(self, offer_id: str, kind: NodeKind) -> None:
        """Wait for one more."""
        group = await asyncio.to_thread(self._cluster.ask_for, kind.reserves)
        self._waits.append(_Wait(offer_id, group, self._wall.monotonic() + WAIT_S))

    async def look(self) -> None:
        """See what has come; give back what is not wanted any more."""
        for wait in list(self._waits):
            if not wait.ray_node:
                wait.ray_node = await asyncio.to_thread(self._cluster.given, wait.group)
                if wait.ray_node:
                    wait.until_s = self._wall.monotonic() + KEEP_S
            if self._wall.monotonic() > wait.until_s:
                await self._end(wait)

    async def take(self, ray_node: str) -> None:
        """The resources kept for us there are for us to reserve now."""
        for wait in [wait for wait in self._waits if wait.ray_node == ray_node]:
            await self._end(wait)

    async def close(self) -> None:
        """Wait no longer."""
        for wait in list(self._waits):
            with contextlib.suppress(Exception):  # they end with this process in any case
                await self._end(wait)

    async def _end(self, wait: _Wait) -> None:
        self._waits.remove(wait)
        await asyncio.to_thread(self._cluster.withdraw, wait.group)


class Supply:
    """Nodes as they were last listed; `kinds` are by offer."""

    def __init__(self, kinds: Mapping[str, NodeKind], *, wall: Wall = WALL) -> None:
        self.kinds, self._wall = kinds, wall
        self.listed: dict[str, RayNode] = {}  # that live, by Ray's name
        self.doubted: set[str] = set()  # Ray nodes that do not answer, though Ray says that they live
        self._freed_s: dict[str, float] = {}  # Ray node -> when we gave it back, monotonic
        self._last: dict[str, int] = {}  # offer -> supply as it was last told

    def list(self, nodes: Sequence[RayNode]) -> None:
        """The present state of Ray."""
        self.listed = {node.id: node for node in nodes}
        self.doubted &= self.listed.keys()

    def free(self, ray_node: str) -> None:
        """We have just given it back."""
        self._freed_s[ray_node] = self._wall.monotonic()

    def kind_of(self, node: RayNode) -> NodeKind | None:
        """The first that it fits."""
        return next((kind for kind in self.kinds.values() if kind.fits(node)), None)

    def kept_warm(self, node: RayNode) -> bool:
        """Not where nodes are autoscaled: Ray would think that our steward uses them, and never give them back."""
        kind = self.kind_of(node)
        return kind is not None and not kind.autoscaled and node.ends_unix_s is None

    def free_nodes(self, kind: NodeKind) -> Sequence[str]:
        """Places where one of this kind could be rented."""
        return [node.id for node in self.listed.values() if self.kind_of(node) is kind and self._is_free(kind, node)]

    def changes(self, ours: Container[str]) -> Iterator[tuple[str, int]]:
        """Offers whose supply is another than it was, with how many there are; we hold the nodes in `ours`."""
        of_kind = [(self.kind_of(node), node) for node in self.listed.values()]
        for offer_id, kind in self.kinds.items():
            nodes = [node for found, node in of_kind if found is kind]
            held = sum(node.id in ours and node.ends_unix_s is None for node in nodes)
            supply = held + sum(node.id not in ours and self._is_free(kind, node) for node in nodes)
            if kind.most is not None:
                supply = kind.most if kind.autoscaled else min(kind.most, supply)
            if self._last.get(offer_id) != supply:
                self._last[offer_id] = supply
                yield offer_id, supply

    def _is_free(self, kind: NodeKind, node: RayNode) -> bool:
        if node.ends_unix_s is not None or node.id in self.doubted:
            return False
        freed_s = self._freed_s.get(node.id)
        return kind.is_free(node) or (freed_s is not None and self._wall.monotonic() - freed_s < SETTLE_S)


START_S = 60.0  # for Ray to start one
REST_S = 30.0  # before we try again on a node where it could not be started


@dataclass(frozen=True, slots=True, kw_only=True)
class RayClaim:
    """A Ray node that we hold, or have asked for (`pid` 0)."""

    node_id: str
    offer_id: str
    token: str
    ray_node: str
    began_s: float  # cloud time
    host: str = ""
    port: int = 0  # of its life line
    pid: int = 0  # of the agent, over there


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """An actor that answers, and where its life lines are."""

    actor: Any
    host: str
    port: int


class Stewards:
    """At most one per Ray node and namespace. All verbs may raise NoAnswer: then the outcome is unknown."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        preload: Iterable[str],
        idle_s: float,
        *,
        wall: Wall = WALL,
    ) -> None:
        self._cluster, self._facts, self._wall = cluster, (namespace, tuple(preload), idle_s), wall
        self._cards: dict[str, asyncio.Task[_Card]] = {}  # by Ray node
        self._found: dict[str, Any] = {}  # actors of an earlier controller, by Ray node: they may hold something
        self._failed_s: dict[str, float] = {}  # monotonic

    async def open(self) -> None:
        """Find those that an earlier controller left."""
        self._found = await asyncio.to_thread(self._cluster.stewards, self._facts[0])
        for ray_node, actor in self._found.items():
            self._cards[ray_node] = asyncio.get_running_loop().create_task(self._greet(actor))

    @property
    def places(self) -> Sequence[str]:
        """The Ray nodes where there is one."""
        return tuple(self._cards)

    def rests(self, ray_node: str) -> bool:
        """It could not be started there a moment ago."""
        return self._wall.monotonic() - self._failed_s.get(ray_node, -REST_S) < REST_S

    async def card(self, ray_node: str) -> _Card:
        """The one there; the first to ask starts it."""
        task = self._known(ray_node)
        if task is None:
            task = self._cards[ray_node] = asyncio.get_running_loop().create_task(self._start(ray_node))
        try:
            return await asyncio.shield(task)
        except Exception as error:
            self._failed_s[ray_node] = self._wall.monotonic()
            if isinstance(error, StewardGone) or ray_node not in self._found:
                self.forget(ray_node)
            raise

    async def warm(self, ray_node: str) -> None:
        """Returns when workers can start there at once."""
        card = await self.card(ray_node)
        try:
            await self._cluster.call(card.actor, "warm", wait_s=START_S)
        except StewardGone:
            self.forget(ray_node)
            raise

    async def begin(self, claim: RayClaim, request: Mapping[str, Any], reserves: Mapping[str, float]) -> RayClaim | str:
        """The claim with its agent, or why not."""
        card = await self.card(claim.ray_node)
        record = {"node_id": claim.node_id, "offer_id": claim.offer_id, "token": claim.token}
        try:
            facts = ({**record, "began_s": claim.began_s}, dict(request), dict(reserves))
            born = await self._cluster.call(card.actor, "begin", *facts)
        except StewardGone as error:
            self.forget(claim.ray_node)
            return f"the steward there has ended: {error.why}"
        return str(born["refused"]) if "refused" in born else _claim_from(born, claim.ray_node, card)

    async def held_on(self, ray_node: str) -> Sequence[RayClaim] | None:
        """The nodes that exist there; None = unknown. It also learns that it is still wanted."""
        if (task := self._known(ray_node)) is None:
            return []
        try:
            card = await asyncio.shield(task)
            records = await self._cluster.call(card.actor, "held")
        except StewardGone:
            self.forget(ray_node)
            return []
        except SubletError:  # none of them says that the node is gone
            return None
        return [_claim_from(record, ray_node, card) for record in records]

    async def end(self, ray_node: str, node_id: str) -> bool:
        """Returns when nothing of the node is left; False = there was no steward, so nothing was left before."""
        if (task := self._known(ray_node)) is None:
            return False
        try:
            card = await asyncio.shield(task)
            await self._cluster.call(card.actor, "end", node_id)
        except StewardGone:
            self.forget(ray_node)
            return False
        except SubletError:
            alive = {node.id for node in await asyncio.to_thread(self._cluster.look)}
            if ray_node in alive:
                raise
            self.forget(ray_node)
            return False
        return True

    async def end_quietly(self, ray_node: str, node_id: str) -> None:
        """End what may be left of a node that is gone."""
        with contextlib.suppress(Exception):  # the sweeper looks again, and the lease ends it in any case
            await self.end(ray_node, node_id)

    def forget(self, ray_node: str) -> None:
        """It is gone; the next to ask starts another."""
        self._found.pop(ray_node, None)
        if (task := self._cards.pop(ray_node, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """They stay, as long as they hold something and for a while longer."""
        for ray_node in self.places:
            self.forget(ray_node)

    def _known(self, ray_node: str) -> asyncio.Task[_Card] | None:
        """The one there, if any; one that was found and did not answer is asked again, for it holds what it held."""
        task = self._cards.get(ray_node)
        if task is not None and task.done() and task.exception() is not None and ray_node in self._found:
            task = self._cards[ray_node] = asyncio.get_running_loop().create_task(self._greet(self._found[ray_node]))
        return task

    async def _start(self, ray_node: str) -> _Card:
        return await self._greet(await asyncio.to_thread(self._cluster.steward, ray_node, *self._facts))

    async def _greet(self, actor: Any) -> _Card:
        told = await self._cluster.call(actor, "ready", wait_s=START_S)
        return _Card(actor=actor, host=told["host"], port=told["port"])


def _claim_from(record: Mapping[str, Any], ray_node: str, card: _Card) -> RayClaim:
    names = ("node_id", "offer_id", "token", "began_s", "pid")
    claim = RayClaim(**{name: record[name] for name in names}, ray_node=ray_node)
    return replace(claim, host=card.host, port=card.port)

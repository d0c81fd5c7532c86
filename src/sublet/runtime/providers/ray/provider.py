"""Nodes of a Ray cluster that the user already has: to rent one is to reserve it at Ray and to put an agent on it.

Sublet decides which job gets which node; Ray knows the nodes, keeps others off what we hold and takes everything back
when we are gone. Ray's facts of its nodes become our news: joined and left ones change the supply, drained ones get a
notice, dead ones are lost. That a node has died is known long before Ray says so, from its life line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed
from sublet.domain.offer import Offer
from sublet.domain.quantity import positive
from sublet.errors import InvalidValue, RentFailed, UnknownName
from sublet.machine.files import FILES, Files
from sublet.runtime.agent.nursery import PRELOAD
from sublet.runtime.clock import Clock
from sublet.runtime.providers.local.provider import FIRST_LEASE_S, NODE_ID
from sublet.runtime.providers.protocol import MarketNews, RentedNode, TellMarket
from sublet.runtime.providers.ray.cluster import Cluster, RayClaim, Stewards, StewardWaits, Supply
from sublet.runtime.providers.ray.config import NOTICE_S, NodeKind, RayNode, offer_from
from sublet.runtime.providers.ray.steward import GONE
from sublet.runtime.providers.written import WrittenClaims

LOOK_S = 1.0  # between two looks at the cluster
IDLE_S = 60.0  # a steward that holds nothing and hears nothing for so long ends itself
WARM_S = 120.0  # that a start waits for nodes to be warm
CONNECT_S = 3.0
AGAIN_S = 10.0  # wall, until a refused rent is worth another try
Dial = Callable[[str, int], Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]  # a life line

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTerms:
    """The terms of all agents and stewards of one controller."""

    address: str  # of the engine
    namespace: str  # keeps controllers of one cluster apart
    authority: str = ""
    lease_s: float = FIRST_LEASE_S
    idle_s: float = IDLE_S
    wind_down_s: float = 0.0
    preload: Sequence[str] = PRELOAD


class RayProvider:
    """Rents nodes of one cluster of Ray."""

    def __init__(
        self,
        *,
        state_dir: Path,
        clock: Clock,
        cluster: Cluster,
        kinds: Sequence[NodeKind],
        terms: RayTerms,
        files: Files = FILES,
        dial: Dial = asyncio.open_connection,
    ) -> None:
        positive("idle_s", terms.idle_s)
        home = state_dir.resolve()
        self._clock, self._cluster, self._dial = clock, cluster, dial
        self._supply = Supply({f"ray:{kind.name}": kind for kind in kinds}, wall=clock.wall)
        self._offers = {f"ray:{kind.name}": offer_from(kind, terms.wind_down_s) for kind in kinds}
        self._request = {"address": terms.address, "lease_s": terms.lease_s}
        self._request |= {"authority": terms.authority} if terms.authority else {}
        self._claims = WrittenClaims(home / "ray-nodes", RayClaim, files=files)
        self._stewards = Stewards(cluster, terms.namespace, terms.preload, terms.idle_s, wall=clock.wall)
        self._waits = StewardWaits(cluster, wall=clock.wall)
        self._held: dict[str, RayClaim] = {}
        self._gone: set[str] = set()  # tokens of nodes that existed and do no more
        self._rents: dict[str, asyncio.Task[None]] = {}
        self._choosing: set[str] = set()  # Ray nodes that a rent under way tries
        self._noticed: dict[str, float] = {}  # node -> announced end, seconds of the epoch
        self._life_lines: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._hearer: TellMarket = lambda _: None

    @property
    def offers(self) -> Sequence[Offer]:
        """Offers for rent here."""
        return tuple(self._offers.values())

    def price_age_s(self) -> float | None:
        """Prices are those of our own list of nodes: they hold as long as it does."""
        return 0.0

    async def open(self, tell: TellMarket) -> None:
        """Find what is rented already, tell what there is, and watch from now on."""
        self._hearer = tell
        await asyncio.to_thread(self._cluster.connect)
        nodes = await asyncio.to_thread(self._cluster.look)
        await self._stewards.open()
        await self._find()
        self._see(nodes)
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def warm(self) -> None:
        """Before `open`: returns when every node has a steward with all that workers import, or cannot have one."""
        await asyncio.to_thread(self._cluster.connect)
        await self._stewards.open()
        nodes = [node for node in await asyncio.to_thread(self._cluster.look) if self._supply.kept_warm(node)]
        warming = [asyncio.get_running_loop().create_task(self._stewards.warm(node.id)) for node in nodes]
        if warming:
            _, late = await asyncio.wait(warming, timeout=WARM_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*warming, return_exceptions=True)

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """Reserve a node and fork an agent there, unless this token has one. Ready once the agent says Hello."""
        before = self._rents.get(node_id)
        renting = asyncio.get_running_loop().create_task(self._rent(node_id, offer_id, token, before))
        self._rents[node_id] = renting
        renting.add_done_callback(lambda _: self._rents.get(node_id) is renting and self._rents.pop(node_id))
        await asyncio.shield(renting)  # a caller that gives up must not leave half a rent

    async def release(self, node_id: str) -> None:
        """Returns when no process of it is left and its resources are Ray's again."""
        if (renting := self._rents.get(node_id)) is not None:
            await asyncio.wait([renting])
        claim = self._drop(node_id)
        for ray_node in [claim.ray_node] if claim is not None else await self._places(node_id):
            if await self._stewards.end(ray_node, node_id):
                self._supply.free(ray_node)
        self._claims.remove(node_id)

    async def list(self) -> list[RentedNode]:
        """Every node that exists; of one whose steward cannot be asked just now we believe that it does."""
        places = dict.fromkeys([*self._stewards.places, *(claim.ray_node for claim in self._held.values())])
        answers = await asyncio.gather(*(self._stewards.held_on(ray_node) for ray_node in places))
        found: dict[str, RayClaim] = {}
        for ray_node, answer in zip(places, answers, strict=True):
            believed = [claim for claim in self._held.values() if claim.ray_node == ray_node]
            found |= {claim.node_id: claim for claim in (believed if answer is None else answer)}
        return [
            RentedNode(
                node_id=claim.node_id,
                offer_id=claim.offer_id,
                token=claim.token,
                began_s=claim.began_s,
                instance=f"ray node {claim.ray_node[:16]}, pid {claim.pid}",
            )
            for claim in sorted(found.values(), key=lambda claim: claim.began_s)
        ]

    async def close(self) -> None:
        """Stop watching; nodes stay, as long as their leases do."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await asyncio.gather(*self._rents.values(), return_exceptions=True)
        await self._waits.close()
        tasks = [*self._life_lines.values(), *self._tasks]
        self._life_lines.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stewards.close()

    # ------------------------------------------------------------------ renting

    async def _rent(self, node_id: str, offer_id: str, token: str, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        known = self._held.get(node_id)
        if known is not None and known.token == token:
            return
        if known is not None or not NODE_ID.fullmatch(node_id):
            raise InvalidValue("node_id", node_id, "letters, digits, - _ . and not in use with another token")
        if (kind := self._supply.kinds.get(offer_id)) is None:
            raise UnknownName("offer", offer_id, self._supply.kinds)
        if token in self._gone:
            raise RentFailed(offer_id, "the node of this token was rented, and is gone again", was_there=True)
        count = sum(claim.offer_id == offer_id for claim in self._held.values())
        if kind.most is not None and count >= kind.most:
            raise RentFailed(offer_id, f"sold out: {kind.most} can be held, {count} are")
        new = RayClaim(node_id=node_id, offer_id=offer_id, token=token, ray_node="", began_s=self._clock.now_s())
        why = "no node of the cluster is free"
        for ray_node in self._candidates(new, kind):
            if (refused := await self._claim(replace(new, ray_node=ray_node), kind)) is None:
                return
            why = refused
        if kind.autoscaled and kind.most is not None:
            if count + self._waits.count(offer_id) < kind.most:
                await self._waits.begin(offer_id, kind)
            why = "Ray's autoscaler has been asked for one"
        raise RentFailed(offer_id, why, wait_s=AGAIN_S)

    def _candidates(self, new: RayClaim, kind: NodeKind) -> Sequence[str]:
        """The place where the same node was asked for before comes first and alone: it may be there."""
        asked = [claim.ray_node for claim in self._claims.read() if claim.node_id == new.node_id]
        if asked and asked[0] in self._supply.listed:
            return asked
        taken = {claim.ray_node for claim in self._held.values()} | self._choosing
        free = self._supply.free_nodes(kind)
        return [ray_node for ray_node in [*self._waits.came(new.offer_id), *free] if ray_node not in taken]

    async def _claim(self, claim: RayClaim, kind: NodeKind) -> str | None:
        """Ask the steward there; why not, if not. If it stays unclear, the claim is on record and the error goes up."""
        self._choosing.add(claim.ray_node)
        try:
            await self._waits.take(claim.ray_node)
            self._claims.write(claim)
            born = await self._stewards.begin(claim, self._request, kind.reserves)
        finally:
            self._choosing.discard(claim.ray_node)
        if isinstance(born, str):
            self._claims.remove(claim.node_id)
            return born
        self._keep(born)
        return None

    def _keep(self, claim: RayClaim) -> None:
        """It is ours from now on; its life line tells when it ends."""
        self._claims.write(claim)
        self._held[claim.node_id] = claim
        self._life_lines[claim.node_id] = asyncio.get_running_loop().create_task(self._follow(claim))

    def _drop(self, node_id: str) -> RayClaim | None:
        """Ours no longer, if it was; nothing is told of it any more."""
        claim = self._held.pop(node_id, None)
        line = self._life_lines.pop(node_id, None)
        if line is not None and line is not asyncio.current_task():
            line.cancel()
        self._noticed.pop(node_id, None)
        if claim is not None:
            self._gone.add(claim.token)
        return claim

    async def _places(self, node_id: str) -> Sequence[str]:
        """Possible places of a node that we do not hold."""
        written = [claim.ray_node for claim in self._claims.read() if claim.node_id == node_id]
        if written:
            return written
        listed = await asyncio.gather(*(self._stewards.held_on(ray_node) for ray_node in self._stewards.places))
        return [claim.ray_node for claims in listed for claim in claims or () if claim.node_id == node_id]

    async def _find(self) -> None:
        """Nodes that an earlier controller rented; of those that are gone the next one hears."""
        places = self._stewards.places
        answers = await asyncio.gather(*(self._stewards.held_on(ray_node) for ray_node in places))
        there = dict(zip(places, answers, strict=True))
        for claims in there.values():
            for claim in claims or ():
                self._keep(claim)
        for claim in self._claims.read():
            if claim.node_id in self._held:
                continue
            if claim.pid and there.get(claim.ray_node, ()) is None:
                self._keep(claim)  # unknown: its life line will tell
                continue
            self._claims.remove(claim.node_id)
            if claim.pid:  # else it was asked for, and never given
                self._gone.add(claim.token)
                self._tell(NodeLost(self._clock.now_s(), claim.node_id))

    # ------------------------------------------------------------------ what becomes of nodes

    async def _follow(self, claim: RayClaim) -> None:
        """Until the node is gone. A port that refuses has no steward behind it, so no agent either."""
        word = b""
        while word != GONE:
            try:
                reader, writer = await asyncio.wait_for(self._dial(claim.host, claim.port), CONNECT_S)
            except ConnectionRefusedError:
                self._supply.doubted.add(claim.ray_node)  # most likely the machine is dead; Ray takes long to say so
                break
            except (OSError, TimeoutError):
                await asyncio.sleep(LOOK_S)  # the machine is silent: Ray will say whether it is dead
                continue
            try:
                writer.write(claim.node_id.encode() + b"\n")
                word = await reader.read()
            except OSError:
                pass
            finally:
                writer.close()
        self._lose(claim.node_id)

    def _lose(self, node_id: str) -> None:
        """It is gone, or counts as gone: what may be left of it is ended."""
        if (claim := self._drop(node_id)) is None:
            return
        self._supply.free(claim.ray_node)
        self._claims.remove(node_id)
        self._tell_supply()
        self._tell(NodeLost(self._clock.now_s(), node_id))
        self._spawn(self._stewards.end_quietly(claim.ray_node, claim.node_id))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._see(await asyncio.to_thread(self._cluster.look))
                await self._waits.look()
            except Exception as error:  # noqa: BLE001 - Ray's head is away: what we know stays
                _log.warning("the Ray cluster cannot be looked at: %s", error)

    def _see(self, nodes: Sequence[RayNode]) -> None:
        self._supply.list(nodes)
        self._tell_supply()  # first, or a plan would count on a node that is about to go
        for claim in list(self._held.values()):
            node = self._supply.listed.get(claim.ray_node)
            if node is None:
                self._lose(claim.node_id)
            elif node.ends_unix_s is not None:
                self._notice(claim, node.ends_unix_s)
        for ray_node in set(self._stewards.places) - self._supply.listed.keys():
            self._stewards.forget(ray_node)
        for node in nodes:
            new = node.id not in self._stewards.places or node.id in self._supply.doubted
            if new and self._supply.kept_warm(node) and not self._stewards.rests(node.id):
                self._spawn(self._greet(node.id))
        self._tell_supply()

    async def _greet(self, ray_node: str) -> None:
        """Have a warm steward there; where it cannot be had, a rent will say why."""
        with contextlib.suppress(Exception):
            await self._stewards.warm(ray_node)
            self._supply.doubted.discard(ray_node)

    def _notice(self, claim: RayClaim, ends_unix_s: float) -> None:
        if self._noticed.get(claim.node_id) == ends_unix_s:
            return
        self._noticed[claim.node_id] = ends_unix_s
        left_s = max(0.0, ends_unix_s - self._clock.wall.unix()) if ends_unix_s else NOTICE_S
        now_s = self._clock.now_s()
        self._tell(NodeNoticed(now_s, claim.node_id, now_s + left_s * self._clock.speedup))

    # ------------------------------------------------------------------ supply

    def _tell_supply(self) -> None:
        ours = {claim.ray_node for claim in self._held.values()}
        for offer_id, nodes in self._supply.changes(ours):
            self._tell(AvailabilityChanged(self._clock.now_s(), offer_id, nodes))

    # ------------------------------------------------------------------ small things

    def _tell(self, news: MarketNews) -> None:
        try:
            self._hearer(news)
        except Exception:  # noqa: BLE001 - a fault of the hearer's; the cluster is watched on
            _log.exception("%s could not be told", news)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

"""Machines of one's own as a cloud: to rent one is to put an agent on it, to give it back is to end all that it runs.

A machine that cannot be reached for `gone_s` counts as lost, and as sold out until it comes back. Agents that still run
then are ended when the machine is reached again, or by themselves when the lease is over: whichever is sooner.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sublet.domain.events import AvailabilityChanged, NodeLost
from sublet.domain.offer import Offer
from sublet.errors import InvalidValue, RentFailed, UnknownName
from sublet.machine.files import FILES, Files
from sublet.runtime.clock import Clock
from sublet.runtime.providers.local.provider import NODE_ID
from sublet.runtime.providers.local.records import NodeRecord
from sublet.runtime.providers.protocol import RentedNode, TellMarket
from sublet.runtime.providers.ssh.config import Host, offers_from
from sublet.runtime.providers.ssh.hostline import HostAway, HostLine, Way
from sublet.runtime.providers.written import WrittenClaims

FIRST_S = 60.0  # that a start waits for machines that neither answer nor refuse
AGAIN_S = 10.0  # wall, until a refused rent is worth another try
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostClaim:
    """A machine that we hold, or have asked for (`pid` 0)."""

    node_id: str
    offer_id: str
    token: str
    host: str
    began_s: float  # cloud time
    pid: int = 0  # of the agent, over there


class SshProvider:
    """`hosts` are as they were found; `request` is what every agent is told; at most `most` of an offer are held."""

    def __init__(
        self,
        *,
        state_dir: Path,
        clock: Clock,
        hosts: Sequence[Host],
        way: Way,
        request: Mapping[str, Any],
        most: int | None = None,
        wind_down_s: float = 0.0,
        files: Files = FILES,
    ) -> None:
        self._clock, self._request, self._gone_s, self._most = clock, dict(request), way.gone_s, most
        self._offers = offers_from(hosts, wind_down_s)
        self._claims = WrittenClaims(state_dir.resolve() / "ssh-nodes", _HostClaim, files=files)
        self._lines = {host.name: self._line(host, way) for host in hosts}
        self._held: dict[str, _HostClaim] = {}
        self._gone: set[str] = set()  # tokens of nodes that existed and do no more
        self._busy: dict[str, asyncio.Lock] = {}  # by node: one call about it at a time
        self._choosing: Counter[str] = Counter()  # machines that a rent under way tries
        self._away: dict[str, asyncio.TimerHandle] = {}  # machine -> when it will count as gone
        self._told: dict[str, int] = {}  # offer -> supply as it was last told
        self._tasks: set[asyncio.Task[None]] = set()
        self._tell: TellMarket = lambda _: None
        self._open = False

    @property
    def offers(self) -> Sequence[Offer]:
        """Offers for rent here."""
        return tuple(self._offers.values())

    def price_age_s(self) -> float | None:
        """Prices are those of our own list of machines: they hold as long as it does."""
        return 0.0

    def no_containers(self) -> str:
        """Every machine has said that it has nothing to run them."""
        found = {name: line.found for name, line in self._lines.items()}
        said = {name: facts.get("no_containers", "") for name, facts in found.items() if facts is not None}
        whys = [f"{name}: {why}" for name, why in said.items() if why]
        return f"no machine can run containers ({'; '.join(whys)})" if len(whys) == len(self._lines) else ""

    async def open(self, tell: TellMarket) -> None:
        """Find what runs already, tell what there is, and watch from now on."""
        self._tell, self._open = tell, True
        for claim in self._claims.read():
            if claim.pid and claim.host in self._lines:
                self._held[claim.node_id] = claim  # until its machine says otherwise
            else:
                self._claims.remove(claim.node_id)
        for line in self._lines.values():
            line.open()
            self._begin_to_miss(line.host.name)
        tried = [asyncio.ensure_future(line.tried.wait()) for line in self._lines.values()]
        _, late = await asyncio.wait(tried, timeout=FIRST_S)
        for task in late:
            task.cancel()
        if self._tasks:  # machines that are up are being asked what they run
            await asyncio.wait(list(self._tasks), timeout=FIRST_S)
        for line in self._lines.values():
            if not line.is_up:
                _log.warning("%s cannot be reached: %s", line.host.name, line.why)
        self._tell_supply()

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """An agent on a free machine, unless this token has one. Ready once the agent says Hello."""
        await asyncio.shield(self._spawn(self._one_by_one(node_id, lambda: self._rent(node_id, offer_id, token))))

    async def release(self, node_id: str) -> None:
        """Returns when no process of it is left."""
        await asyncio.shield(self._spawn(self._one_by_one(node_id, lambda: self._release(node_id))))

    async def list(self) -> list[RentedNode]:
        """Every node that exists; of those on a machine that cannot be asked just now we believe that they do."""
        return [
            RentedNode(
                node_id=claim.node_id,
                offer_id=claim.offer_id,
                token=claim.token,
                began_s=claim.began_s,
                instance=f"{claim.host}, pid {claim.pid}",
            )
            for claim in sorted(self._held.values(), key=lambda claim: claim.began_s)
        ]

    async def close(self) -> None:
        """Stop watching; nodes stay, as long as their leases do."""
        self._open = False
        for handle in self._away.values():
            handle.cancel()
        self._away.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in self._lines.values()))

    # ------------------------------------------------------------------ renting

    async def _rent(self, node_id: str, offer_id: str, token: str) -> None:
        known = self._held.get(node_id)
        if known is not None and known.token == token:
            return
        if known is not None or not NODE_ID.fullmatch(node_id):
            raise InvalidValue("node_id", node_id, "letters, digits, - _ . and not in use with another token")
        if offer_id not in self._offers:
            raise UnknownName("offer", offer_id, self._offers)
        if token in self._gone:
            raise RentFailed(offer_id, "the node of this token was rented, and is gone again", was_there=True)
        count = sum(claim.offer_id == offer_id for claim in self._held.values())
        if self._most is not None and count >= self._most:
            raise RentFailed(offer_id, f"sold out: {self._most} can be held, {count} are")
        why = "no machine of this kind is free"
        for name in self._candidates(node_id, offer_id):
            claim = _HostClaim(node_id=node_id, offer_id=offer_id, token=token, host=name, began_s=self._clock.now_s())
            if (refused := await self._claim(claim)) is None:
                return
            why = f"{name}: {refused}"
        raise RentFailed(offer_id, why, wait_s=AGAIN_S)

    def _candidates(self, node_id: str, offer_id: str) -> Sequence[str]:
        """The place where the same node was asked for before comes first and alone: it may be there."""
        asked = [claim.host for claim in self._claims.read() if claim.node_id == node_id and claim.host in self._lines]
        if asked:
            return asked
        taken = {claim.host for claim in self._held.values()} | {name for name, n in self._choosing.items() if n}
        free = (line for name, line in self._lines.items() if name not in taken and line.is_up)
        return [line.host.name for line in free if line.host.offer_id == offer_id]

    async def _claim(self, claim: _HostClaim) -> str | None:
        """Why not, if not. If the machine went while it was asked, the claim is on record and the error goes up."""
        self._choosing[claim.host] += 1
        try:
            self._claims.write(claim)
            record = NodeRecord(
                node_id=claim.node_id, offer_id=claim.offer_id, token=claim.token, began_s=claim.began_s
            )
            born = await self._lines[claim.host].ask("begin", record=asdict(record), request=self._request)
        except RentFailed as error:
            self._claims.remove(claim.node_id)
            return error.why
        finally:
            self._choosing[claim.host] -= 1
        self._keep(replace(claim, pid=born["pid"], began_s=born["began_s"]))
        return None

    async def _release(self, node_id: str) -> None:
        claim = self._held.get(node_id) or next((c for c in self._claims.read() if c.node_id == node_id), None)
        if claim is None:
            return
        self._held.pop(node_id, None)  # that it ends is no news now
        try:
            await self._lines[claim.host].ask("end", node_id=node_id)
        except HostAway:
            self._held[node_id] = claim
            raise
        self._gone.add(claim.token)
        self._claims.remove(node_id)

    def _keep(self, claim: _HostClaim) -> None:
        self._claims.write(claim)
        self._held[claim.node_id] = claim

    # ------------------------------------------------------------------ what becomes of machines

    def _line(self, host: Host, way: Way) -> HostLine:
        return HostLine(
            host,
            way,
            up=lambda: self._on_up(host.name),
            down=lambda why: self._on_down(host.name, why),
            gone=lambda node_id: self._lose(node_id, host.name),
        )

    def _on_up(self, name: str) -> None:
        if (handle := self._away.pop(name, None)) is not None:
            handle.cancel()
        self._spawn(self._compare(name))

    def _on_down(self, name: str, why: str) -> None:
        _log.warning("%s cannot be reached any more: %s", name, why)
        self._begin_to_miss(name)
        self._tell_supply()

    def _begin_to_miss(self, name: str) -> None:
        if self._open:
            self._away[name] = asyncio.get_running_loop().call_later(self._gone_s, self._give_up, name)

    def _give_up(self, name: str) -> None:
        """It was away for too long: all that it had is lost."""
        self._away.pop(name, None)
        for claim in [claim for claim in self._held.values() if claim.host == name]:
            self._lose(claim.node_id, name)
        self._tell_supply()

    async def _compare(self, name: str) -> None:
        """Compare the nodes there, after a while unseen: unknown ones are ended, missing ones are lost."""
        try:
            there = {facts["node_id"]: facts for facts in await self._lines[name].ask("held")}
            for node_id in there:
                claim = self._held.get(node_id) or self._asked_for(node_id, name)
                if claim is None:
                    await self._lines[name].ask("end", node_id=node_id)
                elif node_id not in self._held:
                    self._keep(replace(claim, pid=there[node_id]["pid"]))
        except HostAway as error:
            _log.warning("%s", error)  # and it will be up again
            return
        for claim in [claim for claim in self._held.values() if claim.host == name and claim.node_id not in there]:
            self._lose(claim.node_id, name)
        self._tell_supply()

    def _asked_for(self, node_id: str, name: str) -> _HostClaim | None:
        """A rent without an answer; it will be asked for again, or given back."""
        return next((c for c in self._claims.read() if c.node_id == node_id and c.host == name), None)

    def _lose(self, node_id: str, name: str) -> None:
        claim = self._held.get(node_id)
        if claim is None or claim.host != name:
            return
        del self._held[node_id]
        self._gone.add(claim.token)
        self._claims.remove(node_id)
        self._tell(NodeLost(self._clock.now_s(), node_id))

    def _tell_supply(self) -> None:
        """How many of each offer there are: those that can be reached, as many as may be held."""
        there = Counter(line.host.offer_id for line in self._lines.values() if line.is_up)
        for offer_id in self._offers:
            supply = there[offer_id] if self._most is None else min(there[offer_id], self._most)
            if self._told.get(offer_id) != supply:
                self._told[offer_id] = supply
                self._tell(AvailabilityChanged(self._clock.now_s(), offer_id, supply))

    # ------------------------------------------------------------------

    async def _one_by_one(self, node_id: str, call: Callable[[], Any]) -> None:
        lock = self._busy.setdefault(node_id, asyncio.Lock())
        try:
            async with lock:
                await call()
        finally:
            if not lock.locked():
                self._busy.pop(node_id, None)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

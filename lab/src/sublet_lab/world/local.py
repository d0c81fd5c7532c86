"""The cloud in a box, in a world: the shipped provider with its market, notices, records and rules.

Agents are not forked. Its machine is the controller's, and goes with all nodes when that starts anew.
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sublet.domain.events import AvailabilityChanged, NodeLost, PriceChanged
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import RentFailed
from sublet.market.replay import MarketChange
from sublet.runtime.agent.processes import Process as Seen
from sublet.runtime.clock import Clock
from sublet.runtime.providers.local.market import Strike
from sublet.runtime.providers.local.nodes import ForkerEnded
from sublet.runtime.providers.local.provider import Box, LocalProvider
from sublet.runtime.providers.local.records import Life
from sublet.runtime.providers.protocol import Billed, MarketNews, RentedNode, TellMarket
from sublet.runtime.store import Store
from sublet_lab.world.cloud import Boot, Instance, Struck, nobody
from sublet_lab.world.heap import World
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.machine import MemoryFiles
from sublet_lab.world.node import WorldNode
from sublet_lab.world.plain import PlainCloud

MARKET_S = 400.0  # that the market moves for; all can be had after that
MOST_BOOT_S = 10.0
BORN_S = 0.05  # most, until an agent has written down which process it is
STUCK_S = 10.0  # that a process which does not die is waited for


@dataclass(eq=False)
class Forked(Instance):
    """An agent with all its processes."""

    pid: int = 0
    start: int = 0
    life: Path = Path()
    watchers: dict[int, Callable[[], None]] = field(default_factory=dict)
    lost_s: float = math.inf  # when its provider first told that it is lost


class LocalCloud(PlainCloud):
    """One machine, as its kernel knows it; its market is drawn before anything happens."""

    def __init__(self, world: World, offers: Sequence[Offer], boot: Boot) -> None:
        super().__init__(world, offers, boot, keeps_records=False)
        self.files = MemoryFiles()
        self.boots = 1
        self.by_pid: dict[int, Forked] = {}
        rng = world.stream("market")
        self._notice_s = rng.choice([0.0, 5.0, 30.0, 120.0])
        self._market = tuple(_draw_market(world, offers))
        self._script = tuple(_draw_script(world))

    def provider(self, process: LoopProcess, clock: Clock, store: Store) -> _Side:  # type: ignore[override]  # the shipped one, overheard
        """The shipped provider."""
        del store  # it keeps its own files
        provider = LocalProvider(
            state_dir=Path("/state"),
            clock=clock,
            offers=self.offers,
            market=self._market,
            script=self._script,
            box=Box(notice_s=self._notice_s, boot_s=1.0, seed=1, gpus=("0", "1")),
            forker=WorldForker(self, process),
            files=self.files,
        )
        return _Side(self, provider, clock)

    # ------------------------------------------------------------------ what it is made to do

    def notice(self, instance: Instance, in_s: float) -> None:
        """Notices are its own market's."""

    def take(self, instance: Instance, *, told: bool) -> None:
        """The agent is killed; its provider watches it, told or not."""
        del told
        self.end(instance)

    def sell_out(self, offer_id: str, for_s: float, struck: Struck = nobody) -> None:
        """Supply is its own market's."""

    def reprice(self, offer_id: str, price: Price, struck: Struck = nobody) -> None:
        """Prices are its own market's."""

    def restart_machine(self) -> None:
        """Every process is gone, and numbers of processes mean nothing any more."""
        self.boots += 1
        for instance in self.alive():
            self.end(instance)

    def calm(self) -> None:
        """It keeps its word from now on."""
        super().calm()
        self.files.make_room()

    # ------------------------------------------------------------------ what its kernel does

    def heard(self, news: MarketNews, clock: Clock) -> None:
        """A provider has told since when nodes cost what, or that one is lost: no price from then on is its own.

        So what is taken because of its price is not charged at that. If two controllers follow the market, the one
        that was succeeded among them, both tell the same.
        """
        if isinstance(news, PriceChanged):
            told, ago_s = self._prices[news.offer_id], (clock.now_s() - news.at_s) / clock.speedup
            if told[-1][1] != news.price:
                told.append((max(told[-1][0], self.world.now_s - ago_s), news.price))
        elif isinstance(news, NodeLost) and isinstance(lost := self.find(news.node_id), Forked):
            lost.lost_s = min(lost.lost_s, self.world.now_s)

    def _prices_of(self, instance: Instance) -> Sequence[tuple[float, Price]]:
        """Its prices, and from when on."""
        lost_s = instance.lost_s if isinstance(instance, Forked) else math.inf
        return [(since_s, price) for since_s, price in super()._prices_of(instance) if since_s < lost_s]

    def refuse(self, token: str, since_s: float) -> None:
        """Its market moved as it was forked, so that it was ended: it was never rented."""
        for key, instance in list(self.instances.items()):
            if instance.token == token and instance.began_s >= since_s and instance.ended_s is not None:
                del self.instances[key]

    def fork(self, request: Mapping[str, Any], life: Path) -> None:
        """An agent, which holds its life file from now on, and says in it a moment later which process it is."""
        record = self.files.read(life.with_suffix(".json"))
        offer_id = next(offer.id for offer in self.offers if f'"{offer.id}"'.encode() in record)
        now_s = self.world.now_s
        instance = Forked(request["node_id"], offer_id, request["token"], now_s, now_s)
        instance.pid, instance.start, instance.life = self.world.new_pid(), int(now_s * 100), life
        self.files.write(life, b"")
        self.by_pid[instance.pid] = instance
        self.instances[f"{instance.token}/{instance.pid}"] = instance
        boot_s = self._rng.uniform(request["boot_s"], MOST_BOOT_S)
        try:
            instance.node = self._boot(instance.node_id, instance.token, boot_s, lambda: self.end(instance))
        except OSError:  # its disk does not answer: it ends before its Hello, so that it was never rented
            self.end(instance)
            del self.instances[f"{instance.token}/{instance.pid}"]
        self.world.after(self._rng.uniform(0.0, BORN_S), self._say_who, instance)

    def _say_who(self, instance: Forked) -> None:
        if instance.ended_s is None:
            self.files.write(instance.life, f"{instance.pid} {instance.start}\n".encode())

    def end(self, instance: Instance) -> None:
        """Its kernel tells the watchers."""
        if instance.ended_s is None:
            super().end(instance)
            if isinstance(instance, Forked):
                for died in list(instance.watchers.values()):
                    died()

    def silence(self, pid: int, start: int) -> None:
        """All its processes have their SIGKILL, and the kernel still shows them."""
        if self.is_alive(pid, start) and isinstance(node := self.by_pid[pid].node, WorldNode):
            node.kill()

    # ------------------------------------------------------------------ live processes

    @property
    def boot(self) -> str:
        """The boot of the machine."""
        return f"boot {self.boots}"

    def look(self, life: Path) -> Life:
        """By the lock on its life file."""
        try:
            words = self.files.read(life).split()
        except FileNotFoundError:
            return Life(held=False, process=None)
        held = any(isinstance(i, Forked) and i.life == life for i in self.alive())
        return Life(held=held, process=(int(words[0]), int(words[1])) if words else None)

    def is_alive(self, pid: int, start: int) -> bool:
        """Whether this very process still runs."""
        instance = self.by_pid.get(pid)
        return instance is not None and instance.start == start and instance.ended_s is None


class WorldLives:
    """The live processes on the machine of a cloud in a box."""

    def __init__(self, cloud: LocalCloud) -> None:
        self._cloud = cloud

    @property
    def boot(self) -> str:
        """The boot of the machine."""
        return self._cloud.boot

    def look(self, life: Path) -> Life:
        """The life of the agent with this life file."""
        return self._cloud.look(life)

    def alive(self, pid: int, start: int) -> bool:
        """Whether this very process still runs."""
        return self._cloud.is_alive(pid, start)

    def runs(self, pid: int, start: int) -> bool:
        """The same: none is ever on its way out."""
        return self._cloud.is_alive(pid, start)

    def members(self, pid: int, start: int) -> list[Seen]:
        """The agent, if it runs."""
        return [Seen(pid, 1, pid, start)] if self._cloud.is_alive(pid, start) else []


class WorldForker:
    """The forker of one controller. Its orders are done whether or not their answers are awaited."""

    def __init__(self, cloud: LocalCloud, process: LoopProcess) -> None:
        self._cloud, self._process, self.lives = cloud, process, WorldLives(cloud)
        self._rng = cloud.world.stream("forks")

    def start(self) -> None:
        """It is ready at once."""

    async def warm(self) -> None:
        """It is warm."""

    async def fork(self, request: Mapping[str, Any], life: Path) -> None:
        """There and back; it may die before it forks or after it, and the machine may have no room."""
        lie = self._cloud.lie_about("rent")

        def effect() -> None:
            if lie == "refused":
                raise OSError(errno.EAGAIN, "no more processes")
            self._cloud.files.write(life, b"")
            if lie == "error":
                raise ForkerEnded("the template ended")
            self._cloud.fork(request, life)
            if lie == "done, but an error":
                raise ForkerEnded("the template ended")

        await self._call(effect, slowness=100.0 if lie == "slow" else 1.0)

    def watch(self, pid: int, start: int, died: Callable[[], None]) -> Callable[[], None] | None:
        """The kernel tells a process that lives."""
        if not self._cloud.is_alive(pid, start):
            return None
        watchers, key = self._cloud.by_pid[pid].watchers, id(died)

        def tell() -> None:
            if not self._process.dead:
                self._process.loop.call_soon(lambda: died() if key in watchers else None)

        watchers[key] = tell
        return lambda: watchers.pop(key, None)  # type: ignore[return-value] # it is not looked at

    async def kill(self, pid: int, start: int) -> bool:
        """Gone in a moment, or stuck in the kernel for a while: such a process makes no step any more, but is there."""
        if self._cloud.lie_about("release", "error"):
            await self._call(lambda: self._cloud.silence(pid, start))
            await asyncio.sleep(STUCK_S)
            return False

        def effect() -> bool:
            if self._cloud.is_alive(pid, start):
                instance = self._cloud.by_pid[pid]
                instance.ours = True
                self._cloud.end(instance)
            return True

        return bool(await self._call(effect))

    async def stop(self) -> None:
        """Agents stay."""

    async def _call(self, effect: Callable[[], Any], *, slowness: float = 1.0) -> Any:
        world, answer = self._cloud.world, asyncio.get_running_loop().create_future()
        boot = self._cloud.boot

        def arrive() -> None:
            if not self._is_up_since(boot):
                return  # the asked one went down with the machine
            result, caught = None, None
            try:
                result = effect()
            except (OSError, ForkerEnded) as error:
                caught = error
            if self._process.dead or answer.done():
                return
            if caught is not None:
                answer.set_exception(caught)
            else:
                answer.set_result(result)

        world.after(self._rng.uniform(0.001, 0.05) * slowness, arrive)
        return await answer

    def _is_up_since(self, boot: str) -> bool:
        return self._cloud.boot == boot


class _Side:
    """The shipped provider; its cloud hears what it tells of prices, and keeps its books by them."""

    def __init__(self, cloud: LocalCloud, provider: LocalProvider, clock: Clock) -> None:
        self._cloud, self._provider, self._clock = cloud, provider, clock

    @property
    def offers(self) -> Sequence[Offer]:
        """Offers for rent here."""
        return self._provider.offers

    def price_age_s(self) -> float | None:
        """As the provider says."""
        return self._provider.price_age_s()

    async def open(self, tell: TellMarket) -> None:
        """Overheard."""

        def both(news: MarketNews) -> None:
            self._cloud.heard(news, self._clock)
            tell(news)

        await self._provider.open(both)

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """As the provider does."""
        since_s = self._cloud.world.now_s
        try:
            await self._provider.rent(node_id, offer_id, token)
        except RentFailed as refused:
            if not refused.was_there:
                self._cloud.refuse(token, since_s)
            raise

    async def release(self, node_id: str) -> Billed | None:
        """As the provider does."""
        await self._provider.release(node_id)
        return None

    async def list(self) -> list[RentedNode]:
        """As the provider does."""
        return await self._provider.list()

    async def close(self) -> None:
        """As the provider does."""
        await self._provider.close()


def _draw_market(world: World, offers: Sequence[Offer]) -> list[MarketChange]:
    """Supply and prices of spot, in cloud time; in the end as much as anybody wants, at the price of the list."""
    rng, changes = world.stream("market"), list[MarketChange]()
    for offer in offers:
        if offer.market is not Market.SPOT:
            continue
        changes.append(AvailabilityChanged(0.0, offer.id, rng.randint(2, 6)))
        for _ in range(rng.randint(0, 5)):
            changes.append(AvailabilityChanged(rng.uniform(30.0, MARKET_S), offer.id, rng.randint(0, 5)))
        for _ in range(rng.randint(0, 4)):
            times = rng.choice([0.4, 0.7, 1.5, 2.0, 6.0])  # six times is above our cap
            price = Price(int(offer.price.micro_usd_per_h * times))
            changes.append(PriceChanged(rng.uniform(30.0, MARKET_S), offer.id, price))
        changes.append(AvailabilityChanged(MARKET_S + 20.0, offer.id, 50))
        changes.append(PriceChanged(MARKET_S + 20.0, offer.id, offer.price))
    return sorted(changes, key=lambda change: change.at_s)


def _draw_script(world: World) -> list[Strike]:
    """On top of the record."""
    rng = world.stream("script")
    verbs = ("notice", "kill", "restore")
    strikes = [
        Strike(at_s=rng.uniform(30.0, MARKET_S), verb=rng.choice(verbs), nodes=rng.randint(1, 2))  # type: ignore[arg-type]  # one of three
        for _ in range(rng.randint(0, 4))
    ]
    return sorted(strikes, key=lambda strike: strike.at_s)

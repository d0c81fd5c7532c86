"""A plain cloud: rents machines, keeps books, and lies, sells out, reprices and takes back as it is made to.

Its provider's words may be late, wrong or missing; its books are the ones that a law compares with.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.domain.events import NodeLost, NodeNoticed, PriceChanged
from sublet.domain.money import Price
from sublet.domain.offer import Offer
from sublet.errors import RentFailed
from sublet.runtime.clock import Clock
from sublet.runtime.providers.pacing import Rates
from sublet.runtime.providers.protocol import Billed, MarketNews, RentedNode, TellMarket
from sublet.runtime.store import Store
from sublet_lab.world.books import Books
from sublet_lab.world.cloud import Boot, Instance, Struck, nobody
from sublet_lab.world.heap import World
from sublet_lab.world.loop import LoopProcess

LIES = 0.7  # of the calls while a lie lasts
MOST_BOOT_S = 20.0
UNSEEN_S = 60.0  # that a new machine may be missing in a listing
NEWS_S = 5.0  # until a cloud tells of a machine that ended from inside


@dataclass
class Lie:
    """The fault of the answers to one call, its duration, and its listener."""

    kind: str
    for_s: float
    until_s: float
    struck: Struck


class PlainCloud(Books):
    """In memory. With `keeps_records` its provider tells the charges; without, the client has to guess."""

    def __init__(self, world: World, offers: Sequence[Offer], boot: Boot, *, keeps_records: bool) -> None:
        super().__init__(world, offers, keeps_records=keeps_records)
        self._boot, self._rng = boot, world.stream("cloud")
        self._lies: dict[str, Lie] = {}
        self._sold_out: dict[str, tuple[float, Struck]] = {}
        self.rates = Rates()  # as often as anybody likes
        self.sides: list[PlainProvider] = []
        self.lied: dict[str, int] = {}  # by call: how often an answer was wrong
        self.release_s = 0.0  # that a machine is paid for after it is given back

    def provider(self, process: LoopProcess, clock: Clock, store: Store) -> PlainProvider:
        """As one controller sees it."""
        del store  # it keeps nothing there
        return PlainProvider(self, process, clock)

    # ------------------------------------------------------------------ what it is made to do

    def notice(self, instance: Instance, in_s: float) -> None:
        """Told to the listeners."""
        node_id = instance.node_id
        self._tell(lambda clock: NodeNoticed(clock.now_s(), node_id, clock.now_s() + in_s))

    def take(self, instance: Instance, *, told: bool) -> None:
        """It is gone at once."""
        if instance.ended_s is None:
            self.end(instance)
            if told:
                self.tell_lost(instance)

    def lie(self, call: str, kind: str, for_s: float, struck: Struck = nobody) -> None:
        """For a while; of rents, which are seldom, from the next on."""
        until_s = math.inf if call == "rent" else self.world.now_s + for_s
        self._lies[call] = Lie(kind, for_s, until_s, struck)

    def sell_out(self, offer_id: str, for_s: float, struck: Struck = nobody) -> None:
        """For a while."""
        self._sold_out[offer_id] = (self.world.now_s + for_s, struck)

    def reprice(self, offer_id: str, price: Price, struck: Struck = nobody) -> None:
        """From now on, for what runs, too."""
        if self.sides:
            struck()
        self._prices[offer_id].append((self.world.now_s, price))
        since_s = self.world.now_s
        self._tell(lambda clock: PriceChanged(self.in_cloud_time(since_s, clock), offer_id, price))

    def restart_machine(self) -> None:
        """Nothing of its is there."""

    def calm(self) -> None:
        """It keeps its word from now on."""
        self._lies.clear()
        self._sold_out.clear()

    # ------------------------------------------------------------------ what its providers ask

    def current_prices(self) -> dict[str, tuple[float, Price]]:
        """Prices that have changed since the beginning, and since when."""
        return {offer_id: changes[-1] for offer_id, changes in self._prices.items() if len(changes) > 1}

    def in_cloud_time(self, at_s: float, clock: Clock) -> float:
        """As the controller counts whose clock this is, which may hear of it late."""
        return max(0.0, clock.now_s() - (self.world.now_s - at_s) * clock.speedup)

    def lie_about(self, call: str, *kinds: str) -> str:
        """The fault of this answer, among its possible ones (all, if none is named); "" = none."""
        lie = self._lies.get(call)
        if lie is None or self.world.now_s >= lie.until_s or (kinds and lie.kind not in kinds):
            return ""
        lie.until_s = min(lie.until_s, self.world.now_s + lie.for_s)
        if self._rng.random() >= LIES:
            return ""
        self.lied[call] = self.lied.get(call, 0) + 1
        lie.struck()
        return lie.kind

    def is_sold_out(self, offer_id: str) -> bool:
        """The caller is told."""
        until_s, struck = self._sold_out.get(offer_id, (0.0, nobody))
        if self.world.now_s >= until_s:
            return False
        struck()
        return True

    def create(self, node_id: str, offer_id: str, token: str) -> None:
        """One machine per token, ever."""
        if (old := self.instances.get(token)) is not None:
            if old.ended_s is not None:
                raise RentFailed(offer_id, "the node of this token is gone", was_there=True)
            return
        if self.is_sold_out(offer_id):
            raise RentFailed(offer_id, "sold out")
        now_s = self.world.now_s
        unseen_s = self._rng.uniform(0.0, UNSEEN_S) if self.lie_about("list", "invisible") else 0.0
        instance = self.instances[token] = Instance(node_id, offer_id, token, now_s, now_s + unseen_s)
        instance.node = self._boot(
            node_id, token, self._rng.uniform(1.0, MOST_BOOT_S), lambda: self._ended_itself(instance)
        )

    def find(self, node_id: str) -> Instance | None:
        """The last one under this name."""
        return next((i for i in reversed(self.instances.values()) if i.node_id == node_id), None)

    def end(self, instance: Instance) -> None:
        """It is switched off, and its bill ends."""
        if instance.ended_s is None:
            instance.ended_s, instance.alone = self.world.now_s, not self.attended()
            if instance.node is not None:
                instance.node.switch_off()

    def wind_down(self, node_id: str) -> None:
        """Nothing runs on it any more, and it is paid for until it is ended."""
        instance = self.find(node_id)
        if instance is not None and instance.ended_s is None and instance.node is not None:
            instance.ours = True
            instance.node.switch_off()
            self.world.after(self.release_s, self.end, instance)

    def billed(self, instance: Instance, clock: Clock) -> tuple[float, float]:
        """From when to when, in cloud time; where that has lost some, before it began."""
        now_s, ended_s = clock.now_s(), self.world.now_s if instance.ended_s is None else instance.ended_s
        ago = [(self.world.now_s - at_s) * clock.speedup for at_s in (instance.began_s, ended_s)]
        return now_s - ago[0], now_s - ago[1]

    def _ended_itself(self, instance: Instance) -> None:
        """The machine goes with its agent, as with the shutdown behaviour `terminate`."""
        self.end(instance)
        self.world.after(self._rng.uniform(0.1, NEWS_S), self.tell_lost, instance)

    def tell_lost(self, instance: Instance) -> None:
        """To the listeners."""

        def news(clock: Clock) -> NodeLost:
            if not self.keeps_records:
                return NodeLost(clock.now_s(), instance.node_id)
            return NodeLost(clock.now_s(), instance.node_id, *self.billed(instance, clock))

        self._tell(news)

    def _tell(self, news: Callable[[Clock], MarketNews]) -> None:
        for side in self.sides:
            side.tell(news)


class PlainProvider:
    """The cloud as one controller sees it. A call that was made goes on when its controller is dead."""

    def __init__(self, cloud: PlainCloud, process: LoopProcess, clock: Clock) -> None:
        self._cloud, self._process, self._clock = cloud, process, clock
        self._heard: TellMarket | None = None
        process.at_end(self._forget)

    @property
    def offers(self) -> Sequence[Offer]:
        """Its offers."""
        return self._cloud.offers

    def price_age_s(self) -> float | None:
        """Prices are those of now."""
        return 0.0

    def tell(self, news: Callable[[Clock], MarketNews]) -> None:
        """The market speaks; the controller hears it when it runs."""
        heard, clock = self._heard, self._clock
        if heard is not None and not self._process.dead:
            self._process.loop.call_soon(lambda: heard(news(clock)))

    async def open(self, tell: TellMarket) -> None:
        """Watch, and learn what has changed since the price list."""
        self._heard = tell
        self._cloud.sides.append(self)
        for offer_id, (since_s, price) in self._cloud.current_prices().items():
            tell(PriceChanged(self._cloud.in_cloud_time(since_s, self._clock), offer_id, price))

    async def close(self) -> None:
        """Stop watching."""
        self._forget()

    def _forget(self) -> None:
        if self in self._cloud.sides:
            self._cloud.sides.remove(self)

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """One machine for this token, or an answer that says little."""
        lie = self._cloud.lie_about("rent")

        def effect() -> None:
            if lie == "error":
                raise OSError("500")
            if lie == "refused":
                raise RentFailed(offer_id, "no capacity")
            self._cloud.create(node_id, offer_id, token)
            if lie == "done, but an error":
                raise TimeoutError("no answer")

        await self._call(effect, slowness=20.0 if lie == "slow" else 1.0)

    async def release(self, node_id: str) -> Billed | None:
        """It is gone when this returns."""
        lie = self._cloud.lie_about("release")
        if not lie and self._cloud.release_s:
            await self._call(lambda: self._cloud.wind_down(node_id))
            await asyncio.sleep(self._cloud.release_s)

        def effect() -> Billed | None:
            if lie == "error":
                raise OSError("503")
            instance = self._cloud.find(node_id)
            if instance is None:
                return Billed(nothing=True)
            instance.ours = instance.ended_s is None
            self._cloud.end(instance)
            if lie == "done, but an error":
                raise TimeoutError("no answer")
            if not self._cloud.keeps_records:
                return None
            from_s, to_s = self._cloud.billed(instance, self._clock)
            return Billed(from_s=from_s, to_s=to_s)

        found: Billed | None = await self._call(effect)
        return found

    async def list(self) -> list[RentedNode]:
        """Every machine that can be seen."""
        lie = self._cloud.lie_about("list", "error")

        def effect() -> list[RentedNode]:
            if lie == "error":
                raise OSError("503")
            now_s = self._cloud.world.now_s
            return [
                RentedNode(node_id=i.node_id, offer_id=i.offer_id, token=i.token, began_s=0.0)
                for i in self._cloud.alive()
                if now_s >= i.visible_s
            ]

        found: list[RentedNode] = await self._call(effect)
        return found

    async def _call(self, effect: Callable[[], Any], *, slowness: float = 1.0) -> Any:
        """There and back; what it does there is done whether or not anybody waits for the answer."""
        world, rng = self._cloud.world, self._cloud.world.stream("calls")
        answer = asyncio.get_running_loop().create_future()

        def come_back(result: Any, error: Exception | None) -> None:
            if self._process.dead or answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        def arrive() -> None:
            result, caught = None, None
            try:
                result = effect()
            except Exception as error:  # noqa: BLE001 - the caller is to have it
                caught = error
            world.after(rng.uniform(0.02, 0.3) * slowness, come_back, result, caught)

        world.after(rng.uniform(0.02, 0.5) * slowness, arrive)
        return await answer

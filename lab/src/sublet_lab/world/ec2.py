"""EC2 in memory, under the shipped provider: the seven verbs that it uses, and everything that EC2 says instead.

A launch times out and happened, or fails and did not; a listing lags, comes in pages, and shows what has ended for an
hour; calls are throttled, credentials expire, a termination is accepted and not carried out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.runtime.clock import Clock
from sublet.runtime.providers.aws.build import RATES, server_id_from
from sublet.runtime.providers.aws.calls import Calls
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.provider import AwsAccount, AwsProvider
from sublet.runtime.store import Store
from sublet_lab.world.cloud import Boot, Instance, Struck, nobody
from sublet_lab.world.errors_of_ec2 import NO_CODE, Ec2Error, NoCredentialsError, ReadTimeoutError
from sublet_lab.world.heap import Crash, World
from sublet_lab.world.instances_of_ec2 import KIND, REGION, ZONES, Ec2Instance, fits, in_zones
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.machine import EPOCH_S, MemoryFiles, WorldRng
from sublet_lab.world.plain import MOST_BOOT_S, UNSEEN_S, PlainCloud

CONFIG = AwsConfig(regions=(REGION,), instance_types=(KIND,), image="ami-1", controller="tcp:127.0.0.1:7000")
TOKEN = re.compile(r"printf '%s' (\S+) > token")  # of the node, as the script of its first boot has it
PAGE = 2  # reservations of one answer
LAUNCHES_PER_S, LAUNCHES_AT_ONCE = 2.0, 5  # that EC2 lets an account make
SHOWN_S = 3600.0  # that an instance is listed after its end
ENDS_S = 5.0  # most, from "shutting-down" to "terminated"
REFUSALS = ("InsufficientInstanceCapacity", "SpotMaxPriceTooLow", "VcpuLimitExceeded")
EVERYTHING = "everything"  # a lie of every call
WRONG = ("error", "done, but an error", "refused", "slow", "throttled", "accepted")  # what an answer can be
HEARD_S = 12.0  # most, from when a price is published until the answer with it is there: two calls, one of them slow
FAILED = "Server.InternalError"
PEACE_S = 7  # that EC2 asks for in a header, where it does


class Ec2Cloud(PlainCloud):
    """An account: its books are in whole seconds, as EC2's own times are."""

    def __init__(self, world: World, offers: Sequence[Offer], boot: Boot) -> None:
        super().__init__(world, in_zones(offers), boot, keeps_records=True)
        self.files = MemoryFiles()  # of the controller's machine
        self.by_id: dict[str, Ec2Instance] = {}
        self.calls = 0
        self._asked_prices: dict[str, tuple[Price, Struck]] = {}
        self._crash_in: tuple[int, bool] | None = None
        self.on_crash: Callable[[LoopProcess], None] = lambda process: process.kill()
        self.rates = RATES
        self.page = PAGE
        self.code = NO_CODE  # call, code, until, who is told
        self._garbled: tuple[str, float, Struck] = ("", 0.0, nobody)
        self._struck_by_crash: Struck = nobody
        self._most_nodes = world.stream("account").choice([None, None, 2])
        self.throttled = 0  # launches that were one too many
        self._launches, self._launched_s = float(LAUNCHES_AT_ONCE), world.now_s

    def provider(self, process: LoopProcess, clock: Clock, store: Store) -> AwsProvider:  # type: ignore[override]  # the shipped one
        """The shipped provider, as its `build` puts it together."""
        rng = WorldRng(self.world, "aws")
        client = Ec2Client(self, process)
        return AwsProvider(
            state_dir=Path("/state"),
            clock=clock,
            config=replace(CONFIG, most_nodes=self._most_nodes),
            account=AwsAccount(server_id=server_id_from(store, rng)),
            calls=Calls(lambda _, __: client, rng=rng, wall=clock.wall, order_tries=1),
            offers=self.offers,
            files=self.files,
        )

    @property
    def slack_grains(self) -> float:
        """The rest of the least bill of an instance that ended before a published price was heard may be at either."""
        return sum(map(self._doubtful_grains, self.instances.values()))

    def _doubtful_grains(self, instance: Instance) -> float:
        if instance.ended_s is None:
            return 0.0
        least_s = next(offer for offer in self.offers if offer.id == instance.offer_id).minimum_billing_s
        rest_s = max(0.0, least_s - (instance.ended_s - instance.began_s))
        prices = self._prices[instance.offer_id]
        steps = [
            abs(after.micro_usd_per_h - before.micro_usd_per_h)
            for (_, before), (since_s, after) in pairwise(prices)
            if since_s <= instance.ended_s <= since_s + HEARD_S
        ]
        return sum(steps) * 1e6 * rest_s

    @property
    def untold_grains(self) -> float:
        """A failure on demand is listed as ended, and no row says since when: it counts until that was seen.

        So does spot that was taken, where EC2 did not answer the question for the time.
        """
        untold = [i for i in self.by_id.values() if i.why == FAILED or i.end_untold]
        seen = [i for i in untold if i.shown_s is not None and i.ended_s is not None]
        prices = {o: max(price.micro_usd_per_h for _, price in all_) * 1e6 for o, all_ in self._prices.items()}
        return sum(prices[i.offer_id] * ((i.shown_s or 0.0) + HEARD_S - (i.ended_s or 0.0)) for i in seen)

    # ------------------------------------------------------------------ what it is made to do

    def notice(self, instance: Instance, in_s: float) -> None:
        """The node itself is told, by its metadata; the provider is not told."""

    def take(self, instance: Instance, *, told: bool) -> None:
        """Spot wants it back; it is listed as ended, and there is no other word."""
        del told
        if instance.ended_s is None and isinstance(instance, Ec2Instance):
            instance.why = "Server.SpotInstanceTermination" if instance.spot else FAILED
            self.end(instance)

    def reprice(self, offer_id: str, price: Price, struck: Struck = nobody) -> None:
        """Charged from when it was first published; only spot prices move."""
        if next(offer for offer in self.offers if offer.id == offer_id).market is Market.SPOT:
            self._asked_prices[offer_id] = (price, struck)

    def garble(self, text: str, for_s: float, struck: Struck = nobody) -> None:
        """Prices that are published for a while are this; what is charged stays as it was."""
        self._garbled = (text, self.world.now_s + for_s, struck)

    def answer_with(self, call: str, code: str, for_s: float, struck: Callable[[], None]) -> None:
        """Every such call for a while is answered by this code, and `struck` told each time."""
        self.code = (call, code, self.world.now_s + for_s, struck)

    def crash_in(self, calls: int, *, before: bool, struck: Struck = nobody) -> None:
        """The maker of that call is gone, before it is carried out or after it."""
        self._crash_in, self._struck_by_crash = (calls, before), struck

    def calm(self) -> None:
        """It keeps its word from now on."""
        super().calm()
        self.files.make_room()
        self._crash_in, self._garbled, self.code = None, ("", 0.0, nobody), NO_CODE

    # ------------------------------------------------------------------ what its client asks

    def crash_is_due(self, *, before: bool) -> bool:
        """Whether a call ends its caller, at this side of what it does."""
        if self._crash_in is None or self._crash_in[1] is not before:
            return False
        left = self._crash_in[0]
        self._crash_in = None if left <= 0 else (left - 1, before)
        if left <= 0:
            self._struck_by_crash()
        return left <= 0

    def is_always(self, kind: str) -> bool:
        """Whether every call goes wrong in this way now."""
        lie = self._lies.get(EVERYTHING)
        if lie is None or lie.kind != kind or self.world.now_s >= lie.until_s:
            return False
        lie.struck()
        return True

    def garbled(self) -> str:
        """The text published instead of a price; "" = the price."""
        text, until_s, struck = self._garbled
        if self.world.now_s >= until_s:
            return ""
        struck()
        return text

    def published(self, offer: Offer) -> tuple[float, Price]:
        """The price of now, which counts from when it was first published, and since when."""
        if (asked := self._asked_prices.pop(offer.id, None)) is not None:
            price, struck = asked
            self._prices[offer.id].append((self.world.now_s, price))
            struck()
        since_s, price = self._prices[offer.id][-1]
        return max(since_s, self.world.began_s), price

    def refuse_too_many(self) -> None:
        """A bucket of tokens of its own, for launches."""
        grown = (self.world.now_s - self._launched_s) * LAUNCHES_PER_S
        self._launches = min(float(LAUNCHES_AT_ONCE), self._launches + grown)
        self._launched_s = self.world.now_s
        if self._launches < 1.0:
            self.throttled += 1
            raise Ec2Error("RequestLimitExceeded", 503)
        self._launches -= 1.0

    def launch(self, request: Mapping[str, Any]) -> Ec2Instance:
        """At most one per client token, ever."""
        client_token = request["ClientToken"]
        known = self.instances.get(client_token)
        if isinstance(known, Ec2Instance):
            return known
        tags = {tag["Key"]: tag["Value"] for tag in request["TagSpecifications"][0]["Tags"]}
        if self.is_sold_out(tags["sublet:offer"]):
            raise Ec2Error("InsufficientInstanceCapacity", 500)
        found = TOKEN.search(request["UserData"])
        assert found is not None
        now_s = float(math.floor(self.world.now_s))
        unseen_s = self._rng.uniform(0.0, UNSEEN_S) if self.lie_about("list", "invisible") else 0.0
        instance = Ec2Instance(
            tags["sublet:node"],
            tags["sublet:offer"],
            found[1].strip("'"),
            now_s,
            self.world.now_s + unseen_s,
            id=f"i-{len(self.instances):04}",
            tags=tags,
            spot="InstanceMarketOptions" in request,
        )
        self.instances[client_token] = self.by_id[instance.id] = instance
        instance.node = self._boot(
            instance.node_id,
            instance.token,
            self._rng.uniform(1.0, MOST_BOOT_S),
            lambda: self._ended_itself(instance),
        )
        return instance

    def end(self, instance: Instance) -> None:
        """In whole seconds; "terminated" a little later."""
        if instance.ended_s is None:
            super().end(instance)
            instance.ended_s = max(instance.began_s, float(math.floor(self.world.now_s)))
            if isinstance(instance, Ec2Instance):
                instance.gone_s = self.world.now_s + self._rng.uniform(0.0, ENDS_S)

    def _ended_itself(self, instance: Instance) -> None:
        if isinstance(instance, Ec2Instance) and instance.ended_s is None:
            instance.why = "Client.InstanceInitiatedShutdown"
            self.end(instance)


class Ec2Client:
    """The boto3 client of one controller: its threads wait as long as EC2 takes."""

    def __init__(self, cloud: Ec2Cloud, process: LoopProcess) -> None:
        self._cloud, self._process = cloud, process
        self._rng = cloud.world.stream("calls")

    def run_instances(self, **request: Any) -> dict[str, Any]:
        """One instance."""

        def effect() -> dict[str, Any]:
            self._cloud.refuse_too_many()
            return {"Instances": [self._row(self._cloud.launch(request))]}

        return self._through("rent", effect)

    def terminate_instances(self, InstanceIds: Sequence[str]) -> dict[str, Any]:
        """All of them."""

        def effect() -> dict[str, Any]:
            for name in InstanceIds:
                instance = self._cloud.by_id[name]
                if instance.ended_s is None:
                    instance.ours, instance.why = True, "Client.UserInitiatedShutdown"
                    self._cloud.end(instance)
            return {}

        return self._through("release", effect)

    def create_tags(self, Resources: Sequence[str], Tags: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Tags of instances."""

        def effect() -> dict[str, Any]:
            for name in Resources:
                self._cloud.by_id[name].tags.update({tag["Key"]: tag["Value"] for tag in Tags})
            return {}

        return self._through("list", effect)

    def describe_instances(self, Filters: Sequence[Mapping[str, Any]], NextToken: str = "") -> dict[str, Any]:
        """Those that are listed and fit, a page at a time."""

        def effect() -> dict[str, Any]:
            now_s = self._cloud.world.now_s
            listed = [i for i in self._cloud.by_id.values() if i.visible_s <= now_s < i.gone_s + SHOWN_S]
            found = [i for i in listed if all(fits(i, each) for each in Filters)]
            for instance in found:
                if instance.ended_s is not None and instance.shown_s is None:
                    instance.shown_s = now_s
            first, page = int(NextToken or 0), self._cloud.page
            answer: dict[str, Any] = {"Reservations": [{"Instances": [self._row(i)]} for i in found[first:][:page]]}
            return answer | ({"NextToken": str(first + page)} if len(found) > first + page else {})

        return self._through("list", effect)

    def describe_availability_zones(self) -> dict[str, Any]:
        """As this account calls them."""
        rows = [{"ZoneId": zone, "ZoneName": name} for zone, name in ZONES.items()]
        return self._through("list", lambda: {"AvailabilityZones": rows})

    def describe_spot_price_history(self, **_: Any) -> dict[str, Any]:
        """The last price of each pool."""

        def effect() -> dict[str, Any]:
            garbled = self._cloud.garbled()
            rows = []
            for offer in [offer for offer in self._cloud.offers if offer.market is Market.SPOT]:
                since_s, text = self._cloud.world.now_s, garbled
                if not garbled:  # else what was to be published is, later
                    since_s, price = self._cloud.published(offer)
                    text = f"{price.usd_per_h:.6f}"
                row = {"AvailabilityZone": ZONES[offer.zone], "InstanceType": KIND, "SpotPrice": text}
                rows.append(row | {"Timestamp": self._stamp(since_s)})
            return {"SpotPriceHistory": rows}

        return self._through("list", effect)

    def describe_spot_instance_requests(self, SpotInstanceRequestIds: Sequence[str]) -> dict[str, Any]:
        """When spot took it."""
        instance = self._cloud.by_id[SpotInstanceRequestIds[0].removeprefix("sir-")]
        ended_s = self._cloud.world.now_s if instance.ended_s is None else instance.ended_s
        row = {"Status": {"UpdateTime": self._stamp(ended_s)}}
        instance.end_untold = True
        answer = self._through("list", lambda: {"SpotInstanceRequests": [row]})
        instance.end_untold = False
        return answer

    # ------------------------------------------------------------------

    def _through(self, call: str, effect: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """To EC2 and back, or not."""
        cloud = self._cloud
        cloud.calls += 1
        self._process.loop.take(self._rng.uniform(0.05, 0.6))
        if cloud.crash_is_due(before=True):
            self._crash()
        lie = "expired" if cloud.is_always("expired") else cloud.lie_about(call, *WRONG)
        self._refuse(call, lie)
        done = lie != "accepted"  # else nothing follows from it
        answer = effect() if done else {}
        if cloud.crash_is_due(before=False):
            self._crash()
        if lie == "done, but an error":
            self._process.loop.take(20.0)
            raise ReadTimeoutError("read timed out")
        if lie == "slow":
            self._process.loop.take(10.0)
        date = format_datetime(self._stamp(cloud.world.now_s), usegmt=True)
        return answer | {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {"date": date}}}

    def _refuse(self, call: str, lie: str) -> None:
        wrong, code, until_s, struck = self._cloud.code
        if call == wrong and self._cloud.world.now_s < until_s:
            struck()
            raise NoCredentialsError(code) if code == NoCredentialsError.__name__ else Ec2Error(code)
        match lie:
            case "error":
                raise Ec2Error("InternalError", 500)
            case "refused" if call == "rent":
                raise Ec2Error(self._rng.choice(REFUSALS))
            case "refused":
                raise Ec2Error("UnauthorizedOperation", 403)
            case "throttled":
                told = {"retry-after": str(PEACE_S)} if self._rng.random() < 0.5 else {}
                raise Ec2Error("RequestLimitExceeded", 503, told)
            case "expired":
                raise Ec2Error("ExpiredToken")
            case _:
                return

    def _crash(self) -> NoReturn:
        self._cloud.on_crash(self._process)
        raise Crash

    def _row(self, instance: Ec2Instance) -> dict[str, Any]:
        now_s = self._cloud.world.now_s
        row = {
            "InstanceId": instance.id,
            "State": {"Name": "running"},
            "Tags": [{"Key": key, "Value": value} for key, value in instance.tags.items()],
            "InstanceType": KIND,
            "LaunchTime": self._stamp(instance.began_s),
        }
        if instance.spot:
            row["SpotInstanceRequestId"] = f"sir-{instance.id}"
        if instance.ended_s is not None:
            row["State"] = {"Name": "terminated" if now_s >= instance.gone_s else "shutting-down"}
            row["StateReason"] = {"Code": instance.why}
            when = f"User initiated ({self._stamp(instance.ended_s):%Y-%m-%d %H:%M:%S} GMT)"
            row["StateTransitionReason"] = when if instance.why.startswith("Client") else instance.why
        return row

    @staticmethod
    def _stamp(at_s: float) -> datetime:
        return datetime.fromtimestamp(math.floor(EPOCH_S + at_s), UTC)

"""Renting on AWS, on a moto server: what EC2 says no to, what it does not say, and what it costs."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from sublet import data
from sublet.domain import events as news
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.errors import InvalidValue, NoAccess, NoAnswer, RentFailed, TooManyCalls
from sublet.kernel.kernel import Kernel
from sublet.market.catalogue import load_catalogue
from sublet.runtime.clock import Clock
from sublet.runtime.private import home_of
from sublet.runtime.providers.aws.calls import Calls, client_maker, meaning
from sublet.runtime.providers.aws.instances import client_token
from sublet.runtime.providers.aws.offers import SpotPrices, offers_from
from sublet.testing.rigs import Ears
from sublet_lab.walls import WallOf
from tests.rigs.moto_cloud import REGION, AwsRig, a_config, account, instances, moto, tag

NO_PAUSE = SimpleNamespace(random=lambda: -0.5)  # between two tries of a call


@pytest.fixture
def rig():
    here = AwsRig()
    yield here
    assert here.clean_up() == []


class Tripwire:
    """EC2 behind a hand that can hold a call back: `trip[verb]` is raised, before or after what it asks for."""

    def __init__(self):
        self.asked = []
        self.trip = {}
        self._make = client_maker(moto())
        self._client = None

    def make(self, service, region):
        self._client = self._make(service, region)
        return self

    def __getattr__(self, verb):
        def call(**request):
            self.asked.append((verb, request))
            error, done = self.trip.get(verb, (None, True))
            answer = getattr(self._client, verb)(**request) if done else None
            if error is not None:
                raise error
            return answer

        return call

    def count(self, verb):
        return sum(asked == verb for asked, _ in self.asked)


def said(code, status=400):
    facts = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(facts, "verb")


@asynccontextmanager
async def cloud(rig, **knobs):
    wire = Tripwire()
    provider, ears = rig.provider(calls=Calls(wire.make, rng=NO_PAUSE, order_tries=1), **knobs), Ears()
    await provider.open(ears.tell)
    try:
        yield provider, wire, ears
    finally:
        wire.trip.clear()
        for node in await provider.list():
            await provider.release(node.node_id)
        await provider.close()


# ---------------------------------------------------------------------- launches


def test_a_node_is_told_by_which_certificate_its_controller_is_known(rig):
    async def scene():
        async with cloud(rig, authority="-----BEGIN it's\nus-----\n") as (provider, wire, _):
            await provider.rent("n1", rig.offer_id, "secret-token")
            (request,) = [request for verb, request in wire.asked if verb == "run_instances"]
            told = request["UserData"]
            assert """'-----BEGIN it'"'"'s\nus-----\n' > authority""" in told
            assert "--authority authority" in told

    asyncio.run(scene())


def test_a_launch_says_all_that_a_sweeper_a_bill_and_a_lease_need(rig):
    async def scene():
        async with cloud(rig) as (provider, wire, _):
            await provider.rent("n1", rig.offer_id, "secret-token")
            (request,) = [request for verb, request in wire.asked if verb == "run_instances"]
            assert request["ClientToken"] == client_token("secret-token", "use1-az1")
            assert len(request["ClientToken"]) <= 64
            assert request["ClientToken"].isascii()
            assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
            assert request["MetadataOptions"]["HttpTokens"] == "required"
            assert request["Placement"] == {"AvailabilityZone": "us-east-1b"}  # what moto calls use1-az1
            spot = request["InstanceMarketOptions"]["SpotOptions"]
            (offer,) = [offer for offer in provider.offers if offer.id == rig.offer_id]
            assert float(spot["MaxPrice"]) == offer.cap.usd_per_h == 0.526  # its price on demand
            (row,) = rig.rows()
            assert (tag(row, "node"), tag(row, "offer"), tag(row, "server")) == ("n1", rig.offer_id, rig.server_id)
            until, home = tag(row, "expires-at").split()
            assert until.endswith("Z")
            assert home == home_of(rig.folder)
            tags = json.dumps(row["Tags"])
            assert "secret-token" not in tags  # whoever may list instances must not be able to speak for them

    asyncio.run(scene())


def test_a_launch_that_timed_out_but_happened_is_adopted_by_its_tag_and_not_repeated(rig):
    async def scene():
        async with cloud(rig) as (provider, wire, _):
            wire.trip["run_instances"] = (ReadTimeoutError(endpoint_url="https://ec2"), True)
            with pytest.raises(NoAnswer):
                await provider.rent("n1", rig.offer_id, "t")
            assert rig.left() == ["n1"]
            wire.trip.clear()
            await provider.rent("n1", rig.offer_id, "t")  # moto knows no client tokens: the tag is all there is
            assert rig.left() == ["n1"]
            assert wire.count("run_instances") == 1
            assert [node.node_id for node in await provider.list()] == ["n1"]

    asyncio.run(scene())


def test_a_launch_in_doubt_stays_so_even_if_the_next_attempt_is_refused(rig):
    async def scene():
        async with cloud(rig) as (provider, wire, _):
            wire.trip["run_instances"] = (said("InternalError", 500), False)
            with pytest.raises(NoAnswer):
                await provider.rent("n1", rig.offer_id, "t")
            wire.trip["run_instances"] = (said("InsufficientInstanceCapacity"), False)
            with pytest.raises(NoAnswer, match="in doubt"):
                await provider.rent("n1", rig.offer_id, "t")
            assert (rig.folder / "aws/nodes/n1.json").exists()
            (rig.folder / "aws/nodes/n1.json").unlink()
            provider._fleet.forget("n1")

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("code", "why", "wait_s"),
    [
        ("InsufficientInstanceCapacity", "no capacity", 60.0),
        ("SpotMaxPriceTooLow", "above our cap", 60.0),
        ("MaxSpotInstanceCountExceeded", "spot quota", 300.0),
        ("VcpuLimitExceeded", "vCPU quota", 300.0),
        ("InvalidAMIID.NotFound", "no", 600.0),
    ],
)
def test_a_refusal_says_why_and_the_pool_is_left_alone_for_a_while(rig, code, why, wait_s):
    async def scene():
        async with cloud(rig) as (provider, wire, _):
            wire.trip["run_instances"] = (said(code), False)
            with pytest.raises(RentFailed, match=why) as refused:
                await provider.rent("n1", rig.offer_id, "t1")
            assert refused.value.wait_s == wait_s
            asked = wire.count("run_instances")
            with pytest.raises(RentFailed, match=why) as refused:
                await provider.rent("n2", rig.offer_id, "t2")
            assert 0 < refused.value.wait_s <= wait_s
            assert wire.count("run_instances") == asked  # EC2 was not asked again
            assert not list((rig.folder / "aws/nodes").glob("*.json"))
            other = rig.offer_id.replace("az1", "az2")
            wire.trip.clear()
            await provider.rent("n3", other, "t3")  # another zone is another pool

    asyncio.run(scene())


def test_a_launch_that_was_too_much_leaves_no_doubt_and_the_pool_is_not_to_blame(rig):
    async def scene():
        async with cloud(rig) as (provider, wire, _):
            wire.trip["run_instances"] = (said("RequestLimitExceeded", 503), False)
            with pytest.raises(TooManyCalls) as refused:
                await provider.rent("n1", rig.offer_id, "t1")
            assert refused.value.wait_s is None
            assert not list((rig.folder / "aws/nodes").glob("*.json"))  # nothing was asked for
            wire.trip["run_instances"] = (said("InsufficientInstanceCapacity"), False)
            with pytest.raises(RentFailed, match="no capacity"):  # and so this is a plain no
                await provider.rent("n1", rig.offer_id, "t1")
            other = rig.offer_id.replace("az1", "az2")
            wire.trip["run_instances"] = (said("Throttling"), False)
            with pytest.raises(TooManyCalls):
                await provider.rent("n2", other, "t2")
            wire.trip.clear()
            await provider.rent("n2", other, "t2")  # at once

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Fri, 31 Dec 1999"}, None),
        ({"retry-after": "1e9"}, 600.0),
        ({}, None),
    ],
)
def test_the_time_that_a_cloud_asks_for_is_given_within_reason(headers, wait_s):
    error = said("SomethingNew", 429)
    error.response["ResponseMetadata"]["HTTPHeaders"] = headers
    found = meaning("run_instances", error)
    assert isinstance(found, TooManyCalls)
    assert found.wait_s == wait_s


def test_the_pause_of_a_pool_that_is_refused_again_and_again_doubles(rig):
    async def scene():
        seconds = [0.0]
        rig.clock = Clock(wall=WallOf(lambda: seconds[0]))
        async with cloud(rig) as (provider, wire, _):
            wire.trip["run_instances"] = (said("InsufficientInstanceCapacity"), False)
            waits = []
            for number in range(4):
                with pytest.raises(RentFailed) as refused:
                    await provider.rent(f"n{number}", rig.offer_id, f"t{number}")
                waits.append(refused.value.wait_s)
                seconds[0] += waits[-1] + 1.0
            assert waits == [60.0, 120.0, 240.0, 480.0]

    asyncio.run(scene())


def test_missing_rights_and_expired_credentials_say_what_to_do():
    denied = meaning("run_instances", said("UnauthorizedOperation", 403))
    assert isinstance(denied, NoAccess)
    assert "iam-policy.json" in str(denied)
    expired = meaning("run_instances", said("ExpiredToken"))
    assert isinstance(expired, NoAccess)
    assert "log in again" in str(expired)
    assert isinstance(meaning("run_instances", said("IdempotentParameterMismatch")), NoAnswer)
    assert isinstance(meaning("run_instances", ConnectionResetError("reset")), NoAnswer)


@pytest.mark.parametrize("code", ["InvalidParameterValue", "Unsupported"])
def test_a_start_whose_listing_is_refused_ends_in_words_that_say_what_to_do(rig, code):
    async def scene():
        wire = Tripwire()
        wire.trip["describe_instances"] = (said(code), False)
        provider = rig.provider(calls=Calls(wire.make, rng=NO_PAUSE, order_tries=1))
        with pytest.raises(NoAccess) as refused:
            await provider.open(Ears().tell)
        await provider.close()
        assert refused.value.exit_code == 77
        assert "describe_instances in " in str(refused.value)
        assert f"({code})" in str(refused.value)
        assert "next: 'sublet check'" in str(refused.value)

    asyncio.run(scene())


# ---------------------------------------------------------------------- ends


def test_a_refused_termination_raises_and_the_node_stays_listed(rig):
    async def scene():
        async with cloud(rig) as (provider, wire, ears):
            await provider.rent("n1", rig.offer_id, "t")
            wire.trip["terminate_instances"] = (said("UnauthorizedOperation", 403), False)
            with pytest.raises(NoAccess):
                await provider.release("n1")
            assert [node.node_id for node in await provider.list()] == rig.left() == ["n1"]
            wire.trip.clear()
            billed = await provider.release("n1")
            assert not billed.nothing
            assert rig.left() == []
            assert ears.all(news.NodeLost) == []

    asyncio.run(scene())


def test_what_was_given_back_is_not_rented_again_by_a_late_attempt(rig):
    async def scene():
        async with cloud(rig) as (provider, _, _):
            billed = await provider.release("n1")
            assert billed.nothing
            with pytest.raises(NoAnswer, match="given back"):
                await provider.rent("n1", rig.offer_id, "t")
            assert rig.left() == []

    asyncio.run(scene())


def test_a_second_instance_of_a_node_is_ended(rig):
    async def scene():
        async with cloud(rig) as (provider, wire, _):
            await provider.rent("n1", rig.offer_id, "t")
            (request,) = [request for verb, request in wire.asked if verb == "run_instances"]
            account().run_instances(**request)  # moto knows no client tokens, so this is another one
            assert rig.left() == ["n1", "n1"]
            await provider.list()
            assert rig.left() == ["n1"]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("Client.InstanceInitiatedShutdown", "it was shut down from inside"),
        ("Server.SpotInstanceTermination", ""),
        ("Client.UserInitiatedShutdown", ""),
    ],
)
def test_an_instance_that_shut_itself_down_was_not_taken(rig, code, why):
    class Ended(Tripwire):
        def describe_instances(self, **request):
            answer = self._client.describe_instances(**request)
            for row in [row for one in answer["Reservations"] for row in one["Instances"]]:
                row["State"], row["StateReason"] = {"Name": "terminated"}, {"Code": code}
            return answer

    async def scene():
        async with cloud(rig, poll_s=3600.0) as (provider, _, ears):  # nobody else looks meanwhile
            await provider.rent("n1", rig.offer_id, "t")
            provider._fleet._calls = Calls(Ended().make, rng=NO_PAUSE)
            await provider.list()
            (lost,) = ears.all(news.NodeLost)
            assert getattr(lost, "why", "") == why
            account().terminate_instances(InstanceIds=[row["InstanceId"] for row in instances(rig.server_id)])

    asyncio.run(scene())


def test_instances_in_a_region_that_is_no_longer_asked_for_are_found(rig):
    async def scene():
        both = a_config(regions=(REGION, "us-west-2"), markets=(Market.SPOT,))
        first, ears = rig.provider(config=both), Ears()
        await first.open(ears.tell)
        west = next(offer.id for offer in first.offers if offer.region == "us-west-2" and "usw2-az1" in offer.zone)
        await first.rent("n1", west, "t")
        await first.close()
        second = rig.provider()  # us-east-1 only
        await second.open(ears.tell)
        (rig.folder / "aws/nodes/n1.json").unlink()
        assert [node.node_id for node in await second.list()] == ["n1"]
        await second.release("n1")
        assert all(row["State"]["Name"] == "terminated" for row in instances(rig.server_id, "us-west-2"))
        await second.close()

    asyncio.run(scene())


def test_the_ledger_of_the_kernel_is_what_ec2_recorded_to_the_second(rig):
    """In real time: an order, a launch, an end and the kernel's bill for them."""

    async def scene():
        async with cloud(rig) as (provider, _, _):
            kernel = Kernel(provider.offers)
            kernel.handle(news.BudgetChanged(rig.clock.now_s(), kernel.supply.budget))
            (offer,) = [offer for offer in provider.offers if offer.id == rig.offer_id]
            kernel.supply.wish({offer.id: 1})
            (order,) = kernel.supply.adjust(rig.clock.now_s())
            await provider.rent(order.node_id, offer.id, "t")
            kernel.handle(news.NodeReady(rig.clock.now_s(), order.node_id))
            kernel.handle(news.PriceChanged(rig.clock.now_s(), offer.id, Price.from_usd_per_h("0.4")))
            await asyncio.sleep(1.1)
            zero = datetime.now(UTC).timestamp() - rig.clock.now_s()
            billed = await provider.release(order.node_id)
            await asyncio.sleep(1.1)  # the news comes late; the bill does not grow by it
            lost = news.NodeLost(rig.clock.now_s(), order.node_id, billed.from_s, billed.to_s)
            kernel.handle(lost)
            (lease,) = kernel.ledger.closed
            (row,) = instances(rig.server_id)
            stamp = row["StateTransitionReason"].removeprefix("User initiated (").removesuffix(" UTC)")
            ended = datetime.fromisoformat(stamp)
            assert lease.start_us / 1e6 == pytest.approx(row["LaunchTime"].timestamp() - zero, abs=1.0)
            assert lease.end_us / 1e6 == pytest.approx(ended.replace(tzinfo=UTC).timestamp() - zero, abs=0.5)
            assert lease.cost.usd == pytest.approx(60.0 / 3600 * 0.4, rel=0.2)  # a minute at least

    asyncio.run(scene())


# ---------------------------------------------------------------------- prices


class Market1:
    """DescribeSpotPriceHistory as a test wants it; everything else is moto's."""

    def __init__(self, *prices):
        self.prices = list(prices)

    def make(self, service, region):
        return self

    def describe_availability_zones(self):
        return account().describe_availability_zones()

    def describe_spot_price_history(self, **request):
        assert request["ProductDescriptions"] == ["Linux/UNIX"]
        now = self.prices.pop(0)
        old = {"AvailabilityZone": "us-east-1b", "InstanceType": "g4dn.xlarge", "SpotPrice": "9.0"}
        row = {"AvailabilityZone": "us-east-1b", "InstanceType": "g4dn.xlarge", "SpotPrice": now}
        newest, before = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
        return {"SpotPriceHistory": [{**row, "Timestamp": newest}, {**old, "Timestamp": before}]}


def test_prices_are_followed_and_those_that_cannot_be_meant_are_set_aside():
    async def scene():
        market = Market1("0.30", "0.30", "0.00001", "nan", "-1", "2.9", "0.31")
        offers = offers_from(a_config(), load_catalogue())
        prices = SpotPrices(Calls(market.make), Clock(), offers)
        told, doubts = [], []
        while market.prices:
            told.append([(type(change), change.price.usd_per_h) for change in await prices.changes()])
            doubts.append(next(iter(prices.doubts.values()), ""))
        changed, doubted = news.PriceChanged, news.PriceDoubted
        assert told == [[(changed, 0.3)], [], [], [], [], [(doubted, 2.9)], [(changed, 0.31)]]
        assert "outside" in doubts[2]
        assert "not a price" in doubts[3]
        assert "not a price" in doubts[4]
        assert "jumped" in doubts[5]
        assert doubts[0] == doubts[6] == ""

    asyncio.run(scene())


def test_nothing_is_rented_at_a_price_that_is_not_believed(rig):
    async def scene():
        async with cloud(rig, prices_s=60.0) as (provider, wire, ears):  # moto's spot price is USD 0.00001
            with pytest.raises(RentFailed, match="not believed"):
                await provider.rent("n1", rig.offer_id, "t")
            assert wire.count("run_instances") == 0
            assert ears.all(news.PriceChanged) == []

    asyncio.run(scene())


def test_offers_have_caps_pools_of_one_region_and_a_minute_as_the_least_bill():
    config = a_config(regions=(REGION, "us-west-2"), boot_s=90.0)
    offers = offers_from(config, load_catalogue())
    spot = [offer for offer in offers if offer.market is Market.SPOT]
    assert {offer.pool for offer in spot} == {"T4x1:spot:us-east-1", "T4x1:spot:us-west-2"}
    for offer in offers:
        same_zone = {o.market: o for o in offers if (o.region, o.zone) == (offer.region, offer.zone)}
        if Market.ON_DEMAND in same_zone:
            assert offer.cap == max(offer.price, same_zone[Market.ON_DEMAND].price)
        assert (offer.minimum_billing_s, offer.boot_s) == (60.0, 90.0)
        assert offer.notice_s == (120.0 if offer.market is Market.SPOT else 0.0)


def test_real_money_takes_no_faster_clock(rig):
    rig.clock = Clock(speedup=60.0)
    with pytest.raises(InvalidValue, match="speedup"):
        rig.provider()


# ---------------------------------------------------------------------- rights


def test_the_policy_allows_what_is_called_and_ends_only_what_has_our_tag(rig):
    async def scene():
        async with cloud(rig, prices_s=60.0, config=a_config()) as (provider, wire, _):
            on_demand = rig.offer_id.replace(":spot", ":on-demand")
            await provider.rent("n1", on_demand, "t")
            account().create_tags(
                Resources=[rig.rows()[0]["InstanceId"]],
                Tags=[{"Key": "sublet:expires-at", "Value": "2020-01-01T00:00:00Z"}],
            )
            await provider.list()  # renews it
            await provider.release("n1")
            return {verb for verb, _ in wire.asked}

    called = asyncio.run(scene())
    policy = json.loads(data.bundled("aws/iam-policy.json").read_text(encoding="utf-8"))
    allowed = {}
    for statement in policy["Statement"]:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        for action in actions:
            allowed.setdefault(action, []).append(statement)
    assert {"create_tags", "terminate_instances", "run_instances", "describe_spot_price_history"} <= called
    called.add("describe_spot_instance_requests")  # moto's spot instances have no request to ask about
    assert {"ec2:" + "".join(word.title() for word in verb.split("_")) for verb in called} <= allowed.keys()
    assert not any("*" in action for action in allowed)
    (ends,) = allowed["ec2:TerminateInstances"]
    assert ends["Condition"] == {"Null": {"aws:ResourceTag/sublet:server": "false"}}
    assert all("Condition" in statement for statement in allowed["ec2:CreateTags"])
    assert os.environ["AWS_ACCESS_KEY_ID"] == "testing"  # never anybody's own

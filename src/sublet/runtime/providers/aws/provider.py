"""Rents on AWS: EC2 instances, spot and on demand, and nothing that is paid for is ever forgotten.

    intent on disk -> RunInstances with a client token and tags -> instance on disk -> ... -> TerminateInstances -> seen

Every instance can be found in three ways: by its record here, by its tags at EC2, and by repeating the launch with the
same client token. EC2's listings lag behind, so that something is not listed proves nothing for a minute; and what
EC2 has not confirmed as ended counts as paid for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sublet.domain.events import AvailabilityChanged
from sublet.domain.offer import Market, Offer
from sublet.domain.quantity import named, positive
from sublet.errors import BadInput, InvalidValue, NoAccess, NoAnswer, RentFailed, SubletError, TooManyCalls, UnknownName
from sublet.machine.files import FILES, Files
from sublet.market.catalogue import load_catalogue
from sublet.runtime.clock import Clock
from sublet.runtime.private import home_of
from sublet.runtime.providers.aws.calls import Calls, Refusal, while_it_opens
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.fleet import ABSENCES, EXPIRES_S, LISTED_WITHIN_S, Fleet
from sublet.runtime.providers.aws.instances import (
    Instance,
    InstanceRecord,
    InstanceRecords,
    instance_from,
    launch_request,
    stamp_from,
    token_tag,
)
from sublet.runtime.providers.aws.offers import Pools, SpotPrices, offers_from
from sublet.runtime.providers.protocol import Billed, RentedNode, TellMarket

POLL_S = 5.0  # between two looks at what we hold
PRICES_S = 60.0  # between two looks at spot prices
CONFIRM_S = 180.0  # for EC2 to say that an instance is shutting down
CONFIRM_PAUSE_S = 1.0

Instances = list[Instance]  # inside the class, `list` is a verb

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsAccount:
    """The controller as EC2 and its agents see it, and the pace of its looks."""

    server_id: str
    authority: str = ""
    moved: bool = False  # the state directory, by its owner's word
    priced_on: str = ""  # day of the prices; "" = that of the list
    poll_s: float = POLL_S
    prices_s: float | None = PRICES_S
    unix_s: Callable[[], float] | None = None


class AwsProvider:
    """Cloud time is wall time here: a speed-up would be a wrong bill."""

    def __init__(
        self,
        *,
        state_dir: Path,
        clock: Clock,
        config: AwsConfig,
        calls: Calls,
        account: AwsAccount,
        offers: Sequence[Offer] | None = None,
        files: Files = FILES,
    ) -> None:
        if clock.speedup != 1.0:
            raise InvalidValue("speedup", clock.speedup, "1 with real money")
        named("server_id", account.server_id)
        positive("poll_s", account.poll_s)
        self._offers = {offer.id: offer for offer in offers or offers_from(config, load_catalogue())}
        self._spot = any(offer.market is Market.SPOT for offer in self._offers.values())
        self._listed_unix = 0.0 if self._spot else _unix_of(account.priced_on or _newest_day())  # as old as the list
        self._clock, self._config, self._calls, self._server = clock, config, calls, account.server_id
        self._unix_s = account.unix_s or calls.server_time.unix
        self._poll_s, self._prices_s = account.poll_s, account.prices_s
        self._state_dir, self._moved, self._authority = state_dir, account.moved, account.authority
        records = InstanceRecords(state_dir.resolve() / "aws", files=files)
        self._home = home_of(state_dir)
        self._fleet = Fleet(
            calls,
            records,
            clock,
            server=account.server_id,
            home=self._home,
            regions=config.regions,
            unix_s=self._unix_s,
        )
        self._pools = Pools(clock)
        self._prices = SpotPrices(calls, clock, tuple(self._offers.values()), unix_s=self._unix_s)
        self._one_by_one: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by node
        self._watching: list[asyncio.Task[None]] = []
        self._tell: TellMarket = lambda _: None

    @property
    def offers(self) -> Sequence[Offer]:
        """Offers for rent here."""
        return tuple(self._offers.values())

    def price_age_s(self) -> float | None:
        """Since spot prices were last confirmed; without any, since the day that prices are from."""
        return self._prices.age_s() if self._spot else max(0.0, self._unix_s() - self._listed_unix)

    def no_containers(self) -> str:
        """By what is known of the image."""
        return self._config.no_containers()

    def access_left_s(self) -> float | None:
        """Until the credentials end, by AWS's own clock; None of those that are renewed."""
        ends = self._calls.access_ends()
        return None if ends is None else ends.timestamp() - self._unix_s()

    async def open(self, tell: TellMarket) -> None:
        """Find what is rented already, tell what was lost meanwhile, and watch from now on."""
        self._tell = tell
        with while_it_opens():
            if not self._moved:
                await self._refuse_a_copy()
            if self._config.most_nodes is not None:
                for offer_id in self._offers:
                    tell(AvailabilityChanged(self._clock.now_s(), offer_id, self._config.most_nodes))
            await self._fleet.open(tell, moved=self._moved)
        loop = asyncio.get_running_loop()
        self._watching = [loop.create_task(self._repeat(self._fleet.look, self._poll_s))]
        if self._prices_s is not None:
            await self._follow_prices()
            self._watching.append(loop.create_task(self._repeat(self._follow_prices, self._prices_s)))

    async def close(self) -> None:
        """Stop watching. Instances stay, as long as their leases do."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._watching = []

    async def _refuse_a_copy(self) -> None:
        """Two controllers of one id would end one another's nodes: the one whose nodes are renewed goes on."""
        if not (renewed := await self._fleet.renewed_elsewhere()):
            return
        until = stamp_from(max(instance.expires_unix or 0.0 for instance in renewed))
        nodes = ", ".join(sorted(instance.node_id for instance in renewed))
        why = f"is a copy: the same controller in another directory or on another machine renews {nodes} until {until}"
        hint = (
            "'sublet up' in the original; or begin anew elsewhere with SUBLET_STATE=/path; "
            "or, if the directory was moved and nothing runs at its old place, 'sublet up --moved'"
        )
        raise BadInput(self._state_dir, why, hint=hint)

    # ------------------------------------------------------------------ rent

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """Launch one instance, unless this token has one."""
        if offer_id not in self._offers:
            raise UnknownName("offer", offer_id, self._offers)
        async with self._one_by_one[node_id]:
            record = self._fleet.record(node_id)
            if record is not None and record.token not in ("", token):
                raise InvalidValue("node_id", node_id, "not in use with another token")
            if self._fleet.is_releasing(node_id):
                # Not RentFailed, which says that nothing is paid: the release knows what was.
                raise NoAnswer(f"renting {node_id}", "it was given back meanwhile")
            if record is not None and record.instance:
                return
            in_doubt = record is not None and record.asked_s >= 0
            record = record or self._intend(node_id, offer_id, token)
            try:
                await self._launch(record, self._offers[offer_id])
            except TooManyCalls:
                if not in_doubt:  # it was not let in at all
                    self._fleet.forget(node_id)
                raise
            except (Refusal, NoAccess) as error:
                if in_doubt:  # this time it is no, but what of the last time?
                    raise NoAnswer(f"renting {node_id}", f"an earlier attempt is in doubt; now {error.why}") from error
                self._fleet.forget(node_id)
                raise RentFailed(offer_id, error.why, wait_s=self._pools.note_refusal(offer_id, error)) from error

    def _intend(self, node_id: str, offer_id: str, token: str) -> InstanceRecord:
        """Write down what will be asked for, unless it is plain that it cannot be had."""
        if (wait_s := self._pools.wait_s(offer_id)) > 0:
            raise RentFailed(offer_id, self._pools.why(offer_id), wait_s=wait_s)
        if doubt := self._prices.why_not(offer_id):
            raise RentFailed(offer_id, f"its price is not believed: {doubt}")
        most = self._config.most_nodes
        held = sum(record.offer_id == offer_id for record in self._fleet.records)
        if most is not None and held >= most:
            raise RentFailed(offer_id, f"sold out: {most} may be held, {held} are")
        offer = self._offers[offer_id]
        record = InstanceRecord(
            node_id=node_id,
            offer_id=offer_id,
            token=token,
            region=offer.region,
            zone=offer.zone,
            began_s=self._clock.now_s(),
            expires_unix=int(self._unix_s() + EXPIRES_S),
            home=self._home,
        )
        self._fleet.keep(record)
        return record

    async def _launch(self, record: InstanceRecord, offer: Offer) -> None:
        """Adopt what an earlier attempt may have made; else ask EC2, which makes no second one for this token."""
        for found in await self._fleet.of_node(record):
            if found.alive and found.token_tag == token_tag(record.token):
                self._refuse_foreign(found)
                self._fleet.keep(replace(record, instance=found.id))
                return
        zone_name = await self._prices.zone_name(record.region, record.zone)
        facts = {"server": self._server, "zone_name": zone_name, "authority": self._authority}
        request = launch_request(record, offer, self._config, **facts)
        record = replace(record, asked_s=self._clock.now_s())
        self._fleet.keep(record)
        answer = await self._calls.call(record.region, "run_instances", **request)
        launched = instance_from(answer["Instances"][0], record.region)
        if not launched.alive:  # the token was used, long ago
            raise Refusal("gone", "the node of this token was rented, and is gone again", 0.0)
        self._refuse_foreign(launched)
        self._fleet.keep_launched(record, launched.id)
        self._pools.note_success(record.offer_id)

    def _refuse_foreign(self, found: Instance) -> None:
        """A copy of this directory has the same tokens: what it rented with one is not ours."""
        if self._fleet.elsewhere(found):
            why = f"a controller in another directory, of which one is a copy, has rented {found.node_id} already"
            raise Refusal("copy", why, 0.0)

    # ------------------------------------------------------------------ release

    async def release(self, node_id: str) -> Billed:
        """End every instance of the node; returns when EC2 confirms it. Raises when EC2 refuses."""
        self._fleet.begin_release(node_id)
        async with self._one_by_one[node_id]:
            record = self._fleet.record(node_id)
            found = await self._find_all(node_id, record)
            named = "" if record is None else record.instance
            theirs = [each for each in found if each.alive and self._fleet.elsewhere(each)]
            if found := [each for each in found if each not in theirs]:
                await self._fleet.end(found)
                found = [await self._fleet.with_end_time(instance) for instance in await self._wait_for_end(found)]
            found += [each for each in theirs if each.id == named]  # taken over: it was ours until now
            billed = self._fleet.end_release(node_id, found)
            if record is not None:
                self._pools.note_success(record.offer_id)  # there is room for one again
            return billed

    async def _find_all(self, node_id: str, record: InstanceRecord | None) -> Instances:
        """All instances of the node. An empty answer is believed only after the time that a listing may lag."""
        looks = 0
        while True:
            found = await self._fleet.of_node(record) if record else await self._fleet.everywhere(node_id)
            named_one = record is not None and record.instance and record.instance not in {i.id for i in found}
            looks += 1
            in_doubt = record is not None and record.asked_s >= 0 and (named_one or not found)
            if not in_doubt or record is None:
                return found
            lag_s = record.asked_s + LISTED_WITHIN_S - self._clock.now_s()
            if named_one and lag_s > 0:  # it can be ended by its name even while it is not listed
                with contextlib.suppress(Refusal):
                    await self._calls.call(record.region, "terminate_instances", InstanceIds=[record.instance])
            if lag_s <= 0 and looks >= ABSENCES:
                return found
            await asyncio.sleep(self._poll_s)

    async def _wait_for_end(self, found: Sequence[Instance]) -> Instances:
        """As EC2 itself lists them, once all of them are ended."""
        deadline_s = self._clock.now_s() + CONFIRM_S
        while True:
            now: dict[str, Instance] = {}
            for region in {instance.region for instance in found}:
                ids = [instance.id for instance in found if instance.region == region]
                filters = [{"Name": "instance-id", "Values": ids}]
                rows = await self._calls.pages(region, "describe_instances", "Reservations", Filters=filters)
                now |= {r["InstanceId"]: instance_from(r, region) for row in rows for r in row["Instances"]}
            left = [i.id for i in found if i.id in now and now[i.id].alive]
            # One that EC2 no longer lists, although it did, has ended long ago.
            if not left:
                return [now.get(instance.id, instance) for instance in found]
            if self._clock.now_s() > deadline_s:
                raise NoAnswer(f"the end of {', '.join(left)}", "EC2 took the order and still shows it running")
            await asyncio.sleep(CONFIRM_PAUSE_S)

    # ------------------------------------------------------------------ list

    async def list(self) -> list[RentedNode]:
        """Every node of ours that exists, or may: what was launched and has not been seen to end."""
        alive = await self._fleet.look()
        theirs = {instance.id for instance in alive if self._fleet.elsewhere(instance)}
        zero_unix = self._unix_s() - self._clock.now_s()
        nodes = {
            record.node_id: RentedNode(
                node_id=record.node_id,
                offer_id=record.offer_id,
                token=record.token,
                began_s=record.began_s,
                instance=record.instance,
                elsewhere=record.instance in theirs,
            )
            for record in self._fleet.records
            if record.instance
        }
        for instance in alive:
            if instance.node_id not in nodes:
                nodes[instance.node_id] = RentedNode(
                    node_id=instance.node_id,
                    offer_id=instance.offer_id,
                    token="",
                    began_s=max(0.0, instance.launched_unix - zero_unix),
                    instance=instance.id,
                    elsewhere=instance.id in theirs,
                )
        return [*nodes.values()]

    # ------------------------------------------------------------------ the market

    async def _follow_prices(self) -> None:
        try:
            for change in await self._prices.changes():
                self._tell(change)
        except SubletError as error:
            _log.warning("spot prices cannot be had: %s", error)

    async def _repeat(self, work: Callable[[], Awaitable[object]], every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await work()
            except (SubletError, OSError) as error:  # OSError: no room to write it down; the next look tries again
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001 - whatever is wrong with one look, the next one is made
                _log.exception("a look at EC2 failed")


def _newest_day() -> str:
    return max(listing.as_of for listing in load_catalogue().listings)


def _unix_of(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()

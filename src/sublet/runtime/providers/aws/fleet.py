"""Our instances at EC2: those asked for, those that EC2 lists, and the consequences of the difference."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sublet.domain.events import NodeLost
from sublet.errors import NoAnswer, SubletError
from sublet.runtime.clock import Clock
from sublet.runtime.providers.aws.calls import Calls, Refusal
from sublet.runtime.providers.aws.instances import (
    EXPIRES_TAG,
    Instance,
    InstanceRecord,
    InstanceRecords,
    expiry_tag,
    list_instances,
)
from sublet.runtime.providers.protocol import Billed, TellMarket

LISTED_WITHIN_S = 60.0  # a new instance may stay out of listings for so long
ABSENCES = 3  # listings in a row without an instance, before it counts as gone
EXPIRES_S = 3600.0  # what the tag promises, renewed at half time: 'sublet gc' may end what is not renewed

_log = logging.getLogger(__name__)


class Fleet:
    """A record of every node that was asked for and not seen to end; losses go to its opener."""

    def __init__(
        self,
        calls: Calls,
        records: InstanceRecords,
        clock: Clock,
        *,
        server: str,
        home: str,
        regions: Iterable[str],
        unix_s: Callable[[], float],
    ) -> None:
        self._held: dict[str, InstanceRecord] = records.read()
        self._ended: set[str] = set()  # instances that EC2 confirmed as ended: a late listing may still show them
        self._releasing: set[str] = set()  # nodes that are given back, or are being: they are not rented again
        self._seen_s: dict[str, float] = {}  # node -> when it was last listed
        self._tell: TellMarket = lambda _: None
        self._absent: Counter[str] = Counter()  # node -> listings in a row without it
        self._calls, self._records, self._clock, self._server, self._home = calls, records, clock, server, home
        self._renewed: set[str] = set()  # instances that this controller has renewed
        self._moved = False  # the directory is: what was renewed at its old place is renewed here from now on
        self._regions, self._unix_s = records.regions(regions), unix_s

    async def open(self, tell: TellMarket, *, moved: bool) -> None:
        """Look for the first time; with `moved`, take over what was renewed at the old place of this directory."""
        self._tell, self._moved = tell, moved
        await self.look()
        self._moved = False  # from here on another place that renews what we hold is a second controller

    @property
    def records(self) -> tuple[InstanceRecord, ...]:
        """Records of every node that was asked for and not seen to end."""
        return tuple(self._held.values())

    def record(self, node_id: str) -> InstanceRecord | None:
        """The record of one node."""
        return self._held.get(node_id)

    def is_releasing(self, node_id: str) -> bool:
        """Whether it is given back, or is being."""
        return node_id in self._releasing

    async def look(self) -> list[Instance]:
        """Compare what we hold with what EC2 lists; tell what is lost. The instances that live."""
        before = {node_id: record for node_id, record in self._held.items() if record.instance}
        began_s = self._clock.now_s()
        listed: list[Instance] = []
        for answer in await asyncio.gather(
            *(list_instances(self._calls, region, server=self._server) for region in sorted(self._regions))
        ):
            listed += answer
        by_id = {instance.id: instance for instance in listed}
        for record in before.values():
            if (found := by_id.get(record.instance)) is not None:
                by_id[found.id] = await self.with_end_time(found)
        for node_id, record in before.items():
            if self._held.get(node_id) is record and node_id not in self._releasing:
                self._compare(record, by_id.get(record.instance), began_s)
        alive = [instance for instance in listed if instance.alive and instance.id not in self._ended]
        ours = [instance for instance in alive if self._moved or not self.elsewhere(instance)]
        await self._end_doubles(ours)
        await self._renew(ours)
        return alive

    def elsewhere(self, instance: Instance) -> bool:
        """Whether the same controller renews it from another directory or machine: then it is not ours to end."""
        return instance.home not in ("", self._home) and (instance.expires_unix or 0.0) > self._unix_s()

    async def renewed_elsewhere(self) -> list[Instance]:
        """Those that live; any at all say that this directory is a copy, or was moved."""
        listed = [await list_instances(self._calls, region, server=self._server) for region in sorted(self._regions)]
        return [found for each in listed for found in each if found.alive and self.elsewhere(found)]

    def _compare(self, record: InstanceRecord, found: Instance | None, began_s: float) -> None:
        node_id = record.node_id
        if found is not None and found.alive:
            self._absent[node_id], self._seen_s[node_id] = 0, began_s
            return
        if found is None:
            self._absent[node_id] += 1
            last_s = max(self._seen_s.setdefault(node_id, max(record.asked_s, began_s)), record.asked_s)
            if self._absent[node_id] < ABSENCES or began_s - last_s < LISTED_WITHIN_S:
                return
        billed = self.bill_for([found]) if found is not None else Billed()
        self._ended |= {record.instance} if found is not None else set()
        self.forget(node_id)
        why = "it was shut down from inside" if found is not None and found.shut_itself_down else ""
        self._tell(NodeLost(self._clock.now_s(), node_id, billed.from_s, billed.to_s, why=why))

    async def _end_doubles(self, alive: Sequence[Instance]) -> None:
        """A second instance of a node should never be; where there is one, it goes."""
        for instance in alive:
            record = self._held.get(instance.node_id)
            if record is not None and record.instance and instance.id != record.instance:
                _log.error("%s is a second instance of %s and is ended", instance.id, instance.node_id)
                with contextlib.suppress(SubletError):  # the next look tries again
                    await self.end([instance])

    async def _renew(self, alive: Sequence[Instance]) -> None:
        """Say in the tags that they are still wanted, and by which server: once when we come, then at half time.

        Our own record is written first, so that it is never behind EC2: a directory whose record is behind is an old
        copy, and 'sublet gc' ends nothing there.
        """
        soon, until = self._unix_s() + EXPIRES_S / 2, int(self._unix_s() + EXPIRES_S)
        due = [i for i in alive if i.id not in self._renewed or (i.expires_unix or 0.0) < soon]
        due = [instance for instance in due if self._write_renewed(instance, until)]
        for region in {instance.region for instance in due}:
            ids = [instance.id for instance in due if instance.region == region]
            if ids:
                tags = [{"Key": EXPIRES_TAG, "Value": expiry_tag(until, self._home)}]
                try:
                    await self._calls.call(region, "create_tags", Resources=ids, Tags=tags)
                    self._renewed |= set(ids)
                except SubletError as error:
                    _log.warning("the expiry of %s cannot be renewed: %s", ", ".join(ids), error)

    def _write_renewed(self, instance: Instance, until: int) -> bool:
        """In our record, if we have one; without room for that it is renewed by a later look."""
        record = self._held.get(instance.node_id)
        if record is None or record.instance != instance.id:
            return True
        try:
            self.keep(replace(record, renewed_unix=until))
        except OSError as error:
            _log.warning("the expiry of %s cannot be renewed: %s", instance.id, error)
            return False
        return True

    async def with_end_time(self, instance: Instance) -> Instance:
        """With the time of its end, where spot took it: its own row does not say, the request for it does."""
        if instance.alive or instance.ended_unix is not None or not instance.spot_request:
            return instance
        ids = [instance.spot_request]
        try:
            verb = "describe_spot_instance_requests"
            answer = await self._calls.call(instance.region, verb, SpotInstanceRequestIds=ids)
            (request,) = answer["SpotInstanceRequests"]
            return replace(instance, ended_unix=request["Status"]["UpdateTime"].timestamp())
        except (
            SubletError,
            KeyError,
            ValueError,
        ) as error:  # then it counts until now: rather too much than too little
            _log.warning("when %s was taken is not known: %s", instance.id, error)
            return instance

    async def of_node(self, record: InstanceRecord) -> list[Instance]:
        """Every instance of a node that we asked for, ended ones too."""
        return await list_instances(self._calls, record.region, server=self._server, node=record.node_id)

    async def everywhere(self, node_id: str) -> list[Instance]:
        """Instances of a node of which we have no record, ended ones too."""
        found = [
            await list_instances(self._calls, region, server=self._server, node=node_id)
            for region in sorted(self._regions)
        ]
        return [instance for each in found for instance in each]

    def bill_for(self, found: Sequence[Instance]) -> Billed:
        """EC2's own record, in cloud time; of several instances all seconds count, one after the other."""
        if not found:
            return Billed(nothing=True)
        zero_unix = self._unix_s() - self._clock.now_s()
        first, *more = sorted(found, key=lambda instance: instance.launched_unix)
        ended = None if first.ended_unix is None else first.ended_unix - zero_unix
        if more and ended is not None:  # a second one should never be; its seconds were paid all the same
            ended += sum((each.ended_unix or self._unix_s()) - each.launched_unix for each in more)
        return Billed(from_s=first.launched_unix - zero_unix, to_s=ended)

    async def end(self, found: Sequence[Instance]) -> None:
        """Order it; EC2 has not confirmed anything yet."""
        for region in {instance.region for instance in found}:
            ids = [instance.id for instance in found if instance.region == region and instance.alive]
            if ids:
                try:
                    await self._calls.call(region, "terminate_instances", InstanceIds=ids)
                except Refusal as error:
                    raise NoAnswer(f"terminate_instances of {', '.join(ids)}", str(error)) from error

    def keep(self, record: InstanceRecord) -> None:
        """On disk when this returns."""
        self._records.write(record)
        self._held[record.node_id] = record

    def keep_launched(self, record: InstanceRecord, instance: str) -> None:
        """EC2 has just named its instance; listings may lag behind from this moment on."""
        self.keep(replace(record, instance=instance))
        self._seen_s[record.node_id] = self._clock.now_s()

    def begin_release(self, node_id: str) -> None:
        """From now on nothing that EC2 lists of it is a loss, and it is not rented again."""
        self._releasing.add(node_id)

    def end_release(self, node_id: str, found: Sequence[Instance]) -> Billed:
        """EC2 has confirmed the end of all its instances; what they cost."""
        self.forget(node_id)
        self._ended |= {instance.id for instance in found}
        return self.bill_for(found)

    def forget(self, node_id: str) -> None:
        """It is not there any more, or never was."""
        self._held.pop(node_id, None)
        self._absent.pop(node_id, None)
        self._seen_s.pop(node_id, None)
        self._records.remove(node_id)

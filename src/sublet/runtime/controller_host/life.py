"""The life of a controller host, as its laptop leads it: rented, met, given the state, started; and back, and ended.

The register (`record.home`, on the laptop) says whose turn it is; the controller host cannot see it, and has a fence of
its own.

    to the controller host   stop here -> copy, fenced there -> register: controller host -> free there -> start there
    back            fence there -> stop there -> copy -> register: here -> end of the controller host

Before the register changes, all can be taken back; after it, all can only go on. A repeated order after a crash goes on
from the present state (`next_step`); every step may be repeated.
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from sublet.errors import BadInput, NoController, Refused, SubletError
from sublet.machine.remote import check_uri
from sublet.machine.rng import RNG
from sublet.machine.wall import WALL
from sublet.runtime.controller_host import instance
from sublet.runtime.controller_host.backup import place_of, restore_backup
from sublet.runtime.controller_host.channel import Remote, connected, meet, new_key, ship
from sublet.runtime.controller_host.idle import IDLE_S
from sublet.runtime.controller_host.parcel import ARRIVING, pack_state, staged, unpack_state
from sublet.runtime.controller_host.record import Home, HostRecord, forget, keep, read_record
from sublet.runtime.file_sync.own_code import whole_code
from sublet.runtime.private import home_of
from sublet.runtime.providers.aws.build import server_of
from sublet.runtime.providers.aws.calls import Calls, client_maker, while_it_opens
from sublet.runtime.providers.aws.config import AwsConfig, config_path, read_config
from sublet.runtime.providers.aws.fleet import EXPIRES_S
from sublet.runtime.settings import Settings, settings_to_json


class HandoverStep(StrEnum):
    """The next step."""

    STOP_HERE = "stop here"
    COPY_THERE = "copy there"
    TURN_TO_ANCHOR = "register: anchor"
    FREE = "free"
    START_THERE = "start there"
    FENCE = "fence"
    STOP_THERE = "stop there"
    COPY_HERE = "copy here"
    TURN_TO_HERE = "register: here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The visible state of both sides. A copy is `fresh` if it is the state as the last controller left it."""

    home: Home
    runs_here: bool = False
    runs_there: bool = False
    fenced: bool = True  # the controller host; a machine that has just come is
    fresh_here: bool = True
    fresh_there: bool = False


def next_step(now: Situation, to: Home) -> HandoverStep | None:
    """None when all is done."""
    if to is Home.ANCHOR:
        if now.home is Home.HERE:
            if now.runs_here:
                return HandoverStep.STOP_HERE
            return HandoverStep.TURN_TO_ANCHOR if now.fresh_there and now.fenced else HandoverStep.COPY_THERE
        if now.fenced:
            return HandoverStep.FREE
        return None if now.runs_there else HandoverStep.START_THERE
    if now.home is Home.HERE:
        return None
    if not now.fenced:
        return HandoverStep.FENCE
    if now.runs_there:
        return HandoverStep.STOP_THERE
    return HandoverStep.TURN_TO_HERE if now.fresh_here else HandoverStep.COPY_HERE


DESK = "sublet.runtime.controller_host.desk"
MEET_S, LOOK_S = 600.0, 1.0  # an image boots, and may install something
UP_S, DOWN_S = 300.0, 300.0  # a small machine compiles all of Sublet first
HEARD_S = 60.0  # for a controller that was asked to stop; then it is told otherwise
REACH_S = 60.0  # for one that was reached before
UNSEEN_S = 30.0  # neither a controller nor what keeps it, after a start
OURS = ("settings.json", "aws.toml", "hosts.toml")  # files that stay as the laptop has them
PLACE = ".local/state/sublet"  # of its state directory, below the home over there

Tell = Callable[[str], None]


@dataclass(kw_only=True)
class ControllerHost:
    """The controller host of one state directory.

    `tell` hears what goes on; `credentials` are sent only if they are given.
    """

    state_dir: Path
    tell: Tell
    credentials: Mapping[str, str] = field(default_factory=dict)
    stop_there: Callable[[], None] | None = None  # asks the controller there to save all and end

    def __post_init__(self) -> None:
        self.config: AwsConfig = read_config(config_path(self.state_dir))
        self._calls = Calls(client_maker(self.config.endpoint_url))
        self._server = server_of(self.state_dir)
        self._minded = False  # a process over there turns the machine off once it is not wanted

    # ------------------------------------------------------------------ up

    async def up(self, settings: Settings, kind: str = "") -> HostRecord:
        """A controller with these settings runs on its host when it returns; where it fails, nothing is rented."""
        record = await self._after_its_end(read_record(self.state_dir))
        begun = record is not None and record.home is Home.ANCHOR
        if not begun and not self.config.anchor_profile and not self.credentials:
            raise _no_credentials()
        if self.config.anchor_backup:
            check_uri("anchor_backup", self.config.anchor_backup)  # without rights to read there is no backup
        try:
            with while_it_opens():
                record = await self._rented(record, kind or self.config.anchor_type)
            record = await self._met(record)
            return await self._given(record, settings)
        except BaseException:
            if begun and record is not None:
                self.tell(
                    f"the controller host {record.instance} stays, for its disk has all that it knew: {self._cost()}"
                )
            else:
                await self._give_up()
            raise

    def _cost(self) -> str:
        """The cost of one on which no controller may live."""
        if self._minded:
            return f"with no controller it turns itself off {IDLE_S / 60:g} minutes after anybody asked for it"
        return f"if it is on, it costs USD {self.config.anchor_usd_per_h:g}/h until 'sublet down' ends it"

    async def _after_its_end(self, record: HostRecord | None) -> HostRecord | None:
        """None where the controller host was ended elsewhere: its backup is here then, and another may be rented."""
        if record is None or record.home is Home.HERE:
            return record
        if not await instance.has_ended(self._calls, record, self._server):
            return record
        if not self.config.anchor_backup:
            why = f"the controller host {record.instance} was ended, and its disk with it: its state is lost"
            hint = "'sublet down' goes back to what is here, from before; anchor_backup = \"s3://...\" prevents it"
            raise BadInput(self.state_dir, why, hint=hint)
        await self._restore()
        forget(self.state_dir)
        self.tell(f"the controller host {record.instance} was ended: its last backup is here, and goes to another")
        return None

    async def _restore(self) -> None:
        place = place_of(self.config.anchor_backup, self._server)
        for said in await asyncio.to_thread(restore_backup, place, self.state_dir, OURS):
            self.tell(said)

    async def _rented(self, record: HostRecord | None, kind: str) -> HostRecord:
        region = self.config.regions[0] if record is None else record.region
        found = {row["InstanceId"] for row in await instance.find(self._calls, region, self._server)}
        if record is None:
            if found:
                why = f"{', '.join(sorted(found))} is the host of this controller, and was made from another place"
                hint = "use it from there; or end it in the EC2 console if it is not wanted any more"
                raise BadInput(self.state_dir, why, hint=hint)
            record = HostRecord(
                region=region,
                token=RNG.token(16),
                nonce=RNG.token(32),
                expires_unix=int(WALL.unix() + EXPIRES_S),
                kind=kind,
                user=self.config.anchor_user,
                python=self.config.anchor_python or self.config.python,
            )
            keep(self.state_dir, record)  # before anything is paid
        if not record.instance and found:
            record = keep(self.state_dir, replace(record, instance=min(found)))
        if not record.instance:
            key = new_key(self.state_dir)
            request = instance.launch_request(
                record, self.config, server=self._server, home=home_of(self.state_dir), key=key
            )
            record = keep(self.state_dir, await instance.launch(self._calls, record, request))
            self.tell(
                f"controller host {record.instance}: a {record.kind} on demand, USD {self.config.anchor_usd_per_h:g}/h"
            )
        return keep(self.state_dir, await instance.wait_until_on(self._calls, record))

    async def _met(self, record: HostRecord) -> HostRecord:
        """Its host key is pinned, and our code is there."""
        until_s = WALL.monotonic() + MEET_S
        while not record.host_key:
            try:
                record = keep(self.state_dir, await meet(record, self.state_dir))
            except NoController:
                if WALL.monotonic() > until_s:
                    raise
                await asyncio.sleep(LOOK_S)
        async with self._remote(record, until_s=until_s) as remote:
            home = (await remote.shell('printf %s "$HOME"')).decode()
            code = await ship(remote, record.python, home, whole_code())
            record = keep(self.state_dir, replace(record, code=code, state_dir=f"{home}/{PLACE}"))
        self.tell(f"controller host {record.instance}: reached at {record.address}, Sublet is there")
        return record

    async def _given(self, record: HostRecord, settings: Settings) -> HostRecord:
        """The state, and a controller."""
        async with self._remote(record) as remote:
            facts = await self._look(remote, record)
            if record.home is Home.ANCHOR:
                await remote.module(DESK, "mind", record.state_dir)
                self._minded = True
            if facts["lacks"]:
                lacks = " ".join(facts["lacks"])
                hint = f"take an image that has them, or write anchor_install = {lacks!r} into aws.toml"
                raise BadInput(f"python of the host: {record.python}", f"has no {lacks}", hint=hint)
            if self.credentials:
                text = "".join(f"{name}={value}\n" for name, value in self.credentials.items())
                await remote.module(DESK, "trust", record.state_dir, data=text.encode())
                if facts["running"]:
                    self.tell("the credentials are there; its controller, which runs, takes them at its next start")
            if facts["failure"] and not facts["running"]:
                self.tell(f"its controller did not live there the last time: {_words(facts)}")
            copied = False
            while step := next_step(_situation(record, facts, runs=facts["kept"], fresh_there=copied), Home.ANCHOR):
                if step is HandoverStep.COPY_THERE:
                    await self._copy_there(remote, record, settings)
                    copied = True
                elif step is HandoverStep.TURN_TO_ANCHOR:
                    record = keep(self.state_dir, replace(record, home=Home.ANCHOR))
                elif step is HandoverStep.FREE:
                    await remote.module(DESK, "free", record.state_dir)
                else:
                    await instance.stay_when_off(self._calls, record)  # it may turn itself off from now on
                    await self._start(remote, record)
                    break
                facts = await self._look(remote, record)
            await self._wait_for_controller(remote, record)
        return record

    async def _copy_there(self, remote: Remote, record: HostRecord, settings: Settings) -> None:
        """But for what came before, when the way broke."""
        have = json.loads(await remote.module(DESK, "staged", record.state_dir))
        pieces = pack_state(self.state_dir, self._as_there(record, settings), have)
        await remote.send(pieces, DESK, "put", record.state_dir)

    async def _copy_here(self, remote: Remote, record: HostRecord) -> None:
        """Over a file: what has come counts, also if the way breaks."""
        path = self.state_dir / ARRIVING
        have = await asyncio.to_thread(staged, self.state_dir)
        try:
            with path.open("w+b") as file:
                try:
                    await remote.fetch(file, DESK, "get", record.state_dir, data=json.dumps(have).encode())
                finally:
                    file.seek(0)
                    await asyncio.to_thread(unpack_state, file, self.state_dir, OURS)
        finally:
            path.unlink()

    async def _start(self, remote: Remote, record: HostRecord) -> None:
        words = (record.state_dir, record.instance, record.region)
        await remote.module(DESK, "start", *words)

    async def _wait_for_controller(self, remote: Remote, record: HostRecord) -> None:
        """Refused with the last words of one that does not live."""
        until_s, seen_s = WALL.monotonic() + UP_S, WALL.monotonic()
        while WALL.monotonic() < until_s:
            facts = await self._look(remote, record)
            if facts["serves"]:
                return
            if facts["running"]:
                seen_s = WALL.monotonic()
            elif facts["failure"] or WALL.monotonic() - seen_s > UNSEEN_S:
                hint = (
                    f"see controller.log and watchdog.log in {record.state_dir} there; 'sublet up --on aws' tries again"
                )
                raise Refused(f"controller host {record.instance}: {_words(facts)}\n  next: {hint}")
            await asyncio.sleep(LOOK_S)
        raise NoController(f"controller host {record.instance}", f"its controller was not up within {UP_S:g} s")

    # ------------------------------------------------------------------ back

    async def back(self) -> None:
        """The controller there has ended, its state is here, and the controller host is no more."""
        record = read_record(self.state_dir)
        if record is None:
            return
        if record.home is Home.ANCHOR and await instance.has_ended(self._calls, record, self._server):
            if self.config.anchor_backup:
                await self._restore()
            what = "its last backup" if self.config.anchor_backup else "what is"
            self.tell(f"the controller host {record.instance} was ended elsewhere: {what} here counts")
            forget(self.state_dir)
            return
        if record.home is Home.ANCHOR:
            record = await self._brought_back(keep(self.state_dir, await instance.wait_until_on(self._calls, record)))
        await instance.end(self._calls, record, self._server)
        forget(self.state_dir)
        if record.instance:
            self.tell(f"controller host {record.instance}: ended")

    async def _brought_back(self, record: HostRecord) -> HostRecord:
        async with self._remote(record, until_s=WALL.monotonic() + MEET_S) as remote:
            facts = await self._look(remote, record)
            if facts["running"] and self.stop_there is not None:  # also one that is fenced: it may not have heard
                await asyncio.to_thread(self.stop_there)  # it saves, and gives back all nodes
            copied = False
            while step := next_step(_situation(record, facts, runs=facts["running"], fresh_here=copied), Home.HERE):
                if step is HandoverStep.FENCE:
                    await remote.module(DESK, "fence", record.state_dir)
                elif step is HandoverStep.STOP_THERE:
                    await self._wait_for_end(remote, record)
                elif step is HandoverStep.COPY_HERE:
                    await self._copy_here(remote, record)
                    copied = True
                else:
                    record = keep(self.state_dir, replace(record, home=Home.HERE))
                facts = await self._look(remote, record)
        return record

    async def _wait_for_end(self, remote: Remote, record: HostRecord) -> None:
        """One that was not asked, or did not hear it, is told by a signal: it saves all the same."""
        began_s = WALL.monotonic()
        signal_s = began_s + (0.0 if self.stop_there is None else HEARD_S)
        while (await self._look(remote, record))["running"]:
            now_s = WALL.monotonic()
            if now_s > began_s + DOWN_S:
                hint = "try again; see controller.log there"
                raise NoController(
                    f"controller host {record.instance}", f"it did not stop within {DOWN_S:g} s", hint=hint
                )
            if now_s >= signal_s:
                await remote.module(DESK, "stop", record.state_dir)
                signal_s = now_s + HEARD_S
            await asyncio.sleep(LOOK_S)

    async def _give_up(self) -> None:
        """A start that failed leaves nothing that is paid for; where that fails too, it is said."""
        try:
            await self.back()
        except Exception as error:  # noqa: BLE001 - any failure must be told
            self.tell(f"the controller host may still be there, and cost money: 'sublet down' tries again ({error})")

    # ------------------------------------------------------------------

    def _remote(self, record: HostRecord, *, until_s: float | None = None) -> _Reached:
        return _Reached(record, self.state_dir, WALL.monotonic() + REACH_S if until_s is None else until_s)

    async def _look(self, remote: Remote, record: HostRecord) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(
            await remote.module(DESK, "look", record.state_dir or "/nowhere", *self.config.anchor_needs)
        )
        return facts

    def _as_there(self, record: HostRecord, settings: Settings) -> dict[str, str]:
        """The two files that are others over there; ours stay as they are, for the way back."""
        there = replace(settings, state_dir=record.state_dir, provider="aws", engine="local", hosts="")
        there = replace(there, besides_usd_per_h=self.config.anchor_usd_per_h)
        facts = tomllib.loads(config_path(self.state_dir).read_text(encoding="utf-8"))
        facts["controller"] = f"tls:{record.inner}:{self.config.agents_port}"
        text = "".join(f"{name} = {_toml(value)}\n" for name, value in facts.items())
        return {"settings.json": settings_to_json(there), "aws.toml": text}


class _Reached:
    """A connection that is tried again until a moment."""

    def __init__(self, record: HostRecord, state_dir: Path, until_s: float) -> None:
        self._record, self._state_dir, self._until_s = record, state_dir, until_s

    async def __aenter__(self) -> Remote:
        while True:
            self._connection = connected(self._record, self._state_dir)
            try:
                return Remote(await self._connection.__aenter__(), self._record)
            except NoController:
                if WALL.monotonic() > self._until_s:
                    raise
                await asyncio.sleep(LOOK_S)

    async def __aexit__(self, *error: object) -> None:
        await self._connection.__aexit__(*error)  # type: ignore[arg-type] # as they came


def _words(facts: Mapping[str, Any]) -> str:
    """Why no controller is there: its own words, after its exit code; else the last ones of what keeps it."""
    said = str(facts["failure"]).partition("\n")[2].partition("\n  next: ")[0].strip()
    return (
        said
        or f"neither a controller nor its watchdog lives on the controller host: {facts['last'].strip() or 'no word'}"
    )


def _situation(
    record: HostRecord, facts: Mapping[str, Any], *, runs: bool, fresh_here: bool = False, fresh_there: bool = False
) -> Situation:
    return Situation(
        home=record.home,
        runs_there=runs,
        fenced=bool(facts["fenced"] or not facts["held"]),  # where there is no state, nothing can run
        fresh_here=fresh_here,
        fresh_there=fresh_there,
    )


def _no_credentials() -> SubletError:
    why = "the controller host has no way to rent: its controller needs credentials of its own"
    hint = (
        "make a role with the policy of 'sublet check --iam', and write its instance profile into aws.toml: "
        "anchor_profile = NAME; or send your own along with --send-credentials, which lie on its disk then"
    )
    return BadInput("aws.toml", why, hint=hint)


def _toml(value: Any) -> str:
    """JSON's strings, numbers and lists are TOML's, too; a table is written in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)

"""A cloud that lies and a controller that dies: the real controller and provider, a moto server, and virtual time.

`play(seed)` lives some twenty minutes of a small fleet's life in about a second: launches time out although they
happened, or fail although they happened; new instances stay out of listings for up to a minute; terminations are
refused, or accepted and not done; calls are throttled, doubled and cut; spot takes instances; and at chosen calls the
controller is gone, before the call takes effect or after it, and another one starts from what is on disk.

What moto leaves out stands here: client tokens (moto ignores them, EC2 does not), spot requests of RunInstances, and
times (moto knows only the wall's). So the bill that the ledger is compared with is this cloud's own record.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import selectors
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from unittest.mock import patch

from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from sublet.domain.budget import UNLIMITED
from sublet.domain.money import microseconds
from sublet.domain.offer import Market
from sublet.domain.plan import Plan
from sublet.errors import NoAccess, NoAnswer
from sublet.kernel.invariants import check
from sublet.market.catalogue import load_catalogue
from sublet.runtime.clock import Clock
from sublet.runtime.controller.core.loop import Controller
from sublet.runtime.controller.host import HostServices, Options, Paces
from sublet.runtime.providers.aws.calls import Calls
from sublet.runtime.providers.aws.offers import offers_from
from sublet.runtime.providers.aws.provider import AwsAccount, AwsProvider
from sublet.runtime.store import Store
from sublet.wire.messages import Hello
from sublet_lab.walls import WallOf
from tests.rigs.moto_cloud import a_config, account, forget_all, tag

EPOCH = 1_900_000_000  # unix time of virtual second 0
FAULTS_UNTIL_S = 600.0
WANTED_UNTIL_S = 800.0
OVER_BY_S = 3_000.0
BOOT_S = 20.0
LONGEST_LAG_S = 60.0
TOKEN_IN_USER_DATA = re.compile(r"printf '%s' (\S+) > token")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while nothing is to be done; threads are calls that take `latency_s`."""

    def __init__(self):
        self.now_s = 0.0
        self.latency_s = lambda: 0.0
        self.killed = False
        super().__init__(_Selector(self))

    def time(self):
        return self.now_s

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()
        if self.killed:
            return future  # nobody is there to hear the answer
        self.took_s = 0.0
        try:
            result, error = func(*args), None
        except Exception as raised:  # noqa: BLE001 - it is the caller's
            result, error = None, raised
        if self.killed:
            return future

        def answer():
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)

        self.call_later(self.took_s, answer)
        return future


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout:
            self._loop.now_s += timeout
        assert ready or timeout is not None, "nothing will ever happen"
        return ready


@dataclass
class Record:
    """What the cloud itself knows of one instance; times are whole seconds, as EC2's are."""

    id: str
    node_id: str
    offer_id: str
    token: str
    launched_s: int
    listed_s: float
    ended_s: int | None = None
    taken: bool = False


@dataclass
class Cloud:
    """One account, for all the lives of a controller."""

    seed: int
    loop: VirtualLoop
    kills: set[tuple[str, int]]  # calls at which the controller dies: the how manieth of which kind
    records: dict[str, Record] = field(default_factory=dict)
    tokens: dict[str, tuple[str, str]] = field(default_factory=dict)  # client token -> (request, instance)
    calls: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    _cache: dict = field(default_factory=dict)

    def __post_init__(self):
        self.rng = random.Random(self.seed)

    # ------------------------------------------------------------------ the five verbs

    def describe_availability_zones(self, **request):
        return self._through("zones", lambda: account().describe_availability_zones(**request), faults=())

    def describe_instances(self, **request):
        return self._through("describe", lambda: self._described(request), faults=("throttled", "error", "timeout"))

    def describe_spot_instance_requests(self, **request):
        def effect():
            (instance_id,) = [each.removeprefix("sir-") for each in request["SpotInstanceRequestIds"]]
            at = datetime.fromtimestamp(EPOCH + self.records[instance_id].ended_s, UTC)
            return {"SpotInstanceRequests": [{"Status": {"Code": "instance-terminated-by-service", "UpdateTime": at}}]}

        return self._through("request", effect, faults=("throttled", "error", "timeout"))

    def create_tags(self, **request):
        def effect():
            self.changed += 1
            return account().create_tags(**request)

        return self._through("tag", effect, faults=("throttled", "error", "timeout"))

    def run_instances(self, **request):
        faults = ("throttled", "capacity", "expired", "error", "timeout", "error-done", "timeout-done", "twice")
        return self._through("run", lambda: self._launched(request), faults=faults)

    def terminate_instances(self, **request):
        faults = ("throttled", "refused", "error", "timeout", "error-done", "timeout-done", "not-done", "twice")
        return self._through("terminate", lambda: self._ended(request), faults=faults)

    # ------------------------------------------------------------------ lies

    def _through(self, verb, effect, *, faults):
        """One call, with one fault of it at most, and the controller's death before or after what it does."""
        self.calls[verb] += 1
        dies = (verb, self.calls[verb]) in self.kills
        if dies and self.rng.random() < 0.5:
            return self._die(f"killed before {verb}")
        rate = {"describe": 0.08, "request": 0.3, "tag": 0.1}.get(verb, 0.45)
        fault = ""
        if faults and self.loop.now_s < FAULTS_UNTIL_S and self.rng.random() < rate:
            fault = self.rng.choice(faults)
            self._count(f"{verb} {fault}")
        self.loop.took_s = self.rng.uniform(0.05, 1.5)
        if fault in ("timeout", "timeout-done"):
            self.loop.took_s = 20.0
        answer = None
        if fault in ("", "twice", "error-done", "timeout-done"):
            answer = effect()
        if fault == "twice":
            answer = effect()
        if dies:
            return self._die(f"killed after {verb}")
        match fault:
            case "throttled":
                raise _refusal("RequestLimitExceeded", verb)
            case "capacity":
                raise _refusal("InsufficientInstanceCapacity", verb)
            case "expired":
                raise _refusal("ExpiredToken", verb)
            case "refused":
                raise _refusal("UnauthorizedOperation", verb, 403)
            case "error" | "error-done":
                raise _refusal("InternalError", verb, 500)
            case "timeout" | "timeout-done" if self.rng.random() < 0.5:
                raise ReadTimeoutError(endpoint_url="https://ec2")
            case "timeout" | "timeout-done":
                raise ConnectionClosedError(endpoint_url="https://ec2")
            case "not-done":
                return {"TerminatingInstances": []}
        return answer

    def _die(self, how):
        self._count(how)
        self.loop.killed = True

    def _count(self, what):
        self.faults[what] += 1

    # ------------------------------------------------------------------ truth

    def _launched(self, request):
        token, text = request["ClientToken"], json.dumps(request, sort_keys=True)
        if token in self.tokens:
            known, instance_id = self.tokens[token]
            if known != text:
                raise _refusal("IdempotentParameterMismatch", "run")
            rows = account().describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"]
            return {"Instances": [self._row(row) for row in rows]}
        self.changed += 1
        answer = account().run_instances(**request)
        (row,) = answer["Instances"]
        lag_s = self.rng.choice([0.0, 0.0, self.rng.uniform(0.0, LONGEST_LAG_S)])
        if self.loop.now_s > FAULTS_UNTIL_S:
            lag_s = 0.0
        if lag_s:
            self._count("invisible at first")
        self.tokens[token] = (text, row["InstanceId"])
        self.records[row["InstanceId"]] = Record(
            id=row["InstanceId"],
            node_id=tag(row, "node"),
            offer_id=tag(row, "offer"),
            token=TOKEN_IN_USER_DATA.search(request["UserData"])[1],
            launched_s=math.floor(self.loop.now_s),
            listed_s=self.loop.now_s + lag_s,
        )
        return {"Instances": [self._row(row)]}

    def _ended(self, request):
        self.changed += 1
        for instance_id in request["InstanceIds"]:
            record = self.records[instance_id]
            record.ended_s = math.floor(self.loop.now_s) if record.ended_s is None else record.ended_s
        return account().terminate_instances(**request)

    def take(self):
        """Spot wants one back."""
        alive = [record for record in self.records.values() if record.ended_s is None]
        if alive:
            record = self.rng.choice(alive)
            self._count("taken by spot")
            self._ended({"InstanceIds": [record.id]})
            record.taken = True

    def _described(self, request):
        key = json.dumps(request, sort_keys=True)
        if self._cache.get(key, (-1,))[0] != self.changed:
            self._cache[key] = (self.changed, account().describe_instances(**request))
        listed = [
            {"Instances": [self._row(row)]}
            for reservation in self._cache[key][1]["Reservations"]
            for row in reservation["Instances"]
            if self.records[row["InstanceId"]].listed_s <= self.loop.now_s
        ]
        return {"Reservations": listed}

    def _row(self, row):
        row, record = dict(row), self.records[row["InstanceId"]]
        row["LaunchTime"] = datetime.fromtimestamp(EPOCH + record.launched_s, UTC)
        row["StateTransitionReason"], row["SpotInstanceRequestId"] = "", f"sir-{record.id}"
        if record.ended_s is not None:
            stamp = datetime.fromtimestamp(EPOCH + record.ended_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
            by_spot = "Server.SpotInstanceTermination"  # when, is only in the request
            row["StateTransitionReason"] = by_spot if record.taken else f"User initiated ({stamp} GMT)"
        return row


def _refusal(code, verb, status=400):
    facts = {"Error": {"Code": code, "Message": "as a test wants it"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(facts, verb)


class Wishes:
    """A policy that holds what a list says."""

    def __init__(self, seed, offer_ids):
        rng = random.Random(f"wishes {seed}")
        self.steps = [(0.0, dict.fromkeys(offer_ids, 1))]
        at_s = 0.0
        while at_s < WANTED_UNTIL_S - 100.0:
            at_s += rng.uniform(20.0, 160.0)
            self.steps.append((at_s, {offer_id: rng.randint(0, 2) for offer_id in offer_ids}))
        self.steps.append((WANTED_UNTIL_S, dict.fromkeys(offer_ids, 0)))

    def decide(self, snapshot):
        hold = [hold for at_s, hold in self.steps if at_s <= snapshot.now_s][-1]
        later = [at_s for at_s, _ in self.steps if at_s > snapshot.now_s]
        return Plan(hold=hold, ask_again_s=later[0] if later else None)


class Agents:
    """An engine whose agents come by themselves, BOOT_S after the launch, with the token of the user data."""

    lease_s = 900.0  # how long they live on without a controller, as AwsConfig has it

    def __init__(self, cloud):
        self._cloud, self._tokens, self._came, self._hear = cloud, {}, set(), None

    async def open(self, hear):
        self._hear = hear

    def expect(self, node_id, token):
        self._tokens[node_id] = token

    def send(self, node_id, message):
        return True

    async def close(self):
        self._hear = None

    def tick(self):
        for record in self._cloud.records.values():
            up = record.ended_s is None and record.launched_s + BOOT_S <= self._cloud.loop.now_s
            known = self._tokens.get(record.node_id) == record.token
            if up and known and self._hear is not None and record.id not in self._came:
                self._came.add(record.id)
                self._hear(record.node_id, Hello(node_id=record.node_id, token=record.token, pid=1))


@dataclass
class Story:
    """How it ended."""

    seed: int
    calls: int
    lives: int
    instances: int
    faults: Counter[str]
    leaked: list[str]
    doubles: list[str]
    ledger_off_s: float  # the worst difference of a lease's begin or end, where EC2 says when
    taken_off_s: float  # the same for the end of what spot took
    unpaired: list[str]  # leases without an instance, or instances without a lease
    virtual_s: float

    @property
    def sound(self) -> bool:
        """Nothing leaked, nothing twice, and the ledger says what the cloud says, to the second."""
        return not (self.leaked or self.doubles or self.unpaired) and max(self.ledger_off_s, self.taken_off_s) <= 1.0


def _kills(rng):
    """Twice at launches, once at a termination, once anywhere: the next life begins in the middle of something."""
    launches = {("run", number) for number in rng.sample(range(1, 12), 2)}
    return launches | {("terminate", rng.randint(1, 9)), ("describe", rng.randint(2, 250))}


def play(seed: int) -> Story:
    """One life of an account, as `seed` wants it."""
    rng = random.Random(f"kills {seed}")
    loop = VirtualLoop()
    forget_all()
    cloud = Cloud(seed=seed, loop=loop, kills=_kills(rng))
    folder = Path(tempfile.mkdtemp(prefix="sublet-faults-", dir=_memory()))
    logging.disable(logging.CRITICAL)
    try:
        with patch("time.monotonic", loop.time):
            asyncio.set_event_loop(loop)
            lives, kernel = 0, None
            while kernel is None:
                lives += 1
                kernel = _live(loop, cloud, folder, rng)
            return _story(seed, lives, cloud, kernel, loop.now_s)
    finally:
        logging.disable(logging.NOTSET)
        asyncio.set_event_loop(None)
        loop.close()
        shutil.rmtree(folder)


def _memory():
    """A folder in memory where there is one: a life commits some hundred times."""
    folder = Path("/dev/shm")  # noqa: S108 - with a name of its own below
    return folder if folder.is_dir() else None


@cache
def _offers():
    """Two zones of spot; the list is the same at every start, as the log wants it."""
    listed = offers_from(a_config(markets=(Market.SPOT,), boot_s=BOOT_S), load_catalogue())
    return tuple(offer for offer in listed if offer.zone in ("use1-az1", "use1-az2"))


def _live(loop, cloud, folder, rng):
    """One controller, until it dies (None) or all is over (its kernel)."""
    loop.killed = False
    config = a_config(markets=(Market.SPOT,), boot_s=BOOT_S)
    offers = _offers()
    server = f"faults-{cloud.seed}-{id(cloud)}"
    store = Store(folder / "log.sqlite")
    clock = Clock(began_s=loop.now_s, wall=WallOf(loop.time))
    provider = AwsProvider(
        state_dir=folder,
        clock=clock,
        config=config,
        account=AwsAccount(server_id=server, unix_s=lambda: EPOCH + loop.now_s, prices_s=None),
        calls=Calls(lambda service, region: cloud, rng=cloud.rng),
        offers=offers,
    )
    engine = Agents(cloud)
    hub = Controller(
        store,
        provider,
        engine,
        Wishes(cloud.seed, [offer.id for offer in offers]),
        host=HostServices(state_dir=folder, clock=clock, paces=Paces(tick_s=5.0)),
        options=Options(budget=UNLIMITED),
    )

    async def world():
        starting = loop.create_task(hub.start())
        while not loop.killed:
            await asyncio.sleep(1.0)
            if starting.done() and starting.exception() is not None:
                assert isinstance(starting.exception(), NoAnswer | NoAccess), repr(starting.exception())
                cloud.faults["could not start"] += 1  # nobody acts blind; it is started again
                loop.killed = True
                return
            engine.tick()
            if loop.now_s < FAULTS_UNTIL_S and cloud.rng.random() < 0.004:
                cloud.take()
            if starting.done() and loop.now_s < FAULTS_UNTIL_S and cloud.rng.random() < 0.05:
                _say_it_twice(loop, hub, cloud.rng)
            quiet = starting.done() and not hub.kernel.cluster.nodes
            if quiet and loop.now_s > WANTED_UNTIL_S + 200.0:
                return
            assert loop.now_s < OVER_BY_S, f"seed {cloud.seed}: nodes that never went: {list(hub.kernel.cluster.nodes)}"

    loop.run_until_complete(world())
    died = loop.killed
    loop.killed = True  # nothing more reaches the cloud
    store.close()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    if died:
        loop.now_s += rng.choice([1.0, 10.0, 90.0])  # until somebody starts it again
        return None
    check(hub.kernel)
    return hub.kernel


def _say_it_twice(loop, hub, rng):
    """A second call for what is under way: it must change nothing."""
    nodes = list(hub.kernel.cluster.nodes.values())
    if nodes:
        node = rng.choice(nodes)
        work = hub.provider.release(node.id) if node.phase == "releasing" else None
        if node.phase in ("requested", "ready"):
            work = hub.provider.rent(node.id, node.offer.id, hub.leases.token(node.id))
        if work is not None:

            async def quietly():
                with suppress(Exception):
                    await work

            loop.create_task(quietly())


def _story(seed, lives, cloud, kernel, virtual_s):
    by_node = {}
    for record in cloud.records.values():
        by_node.setdefault(record.node_id, []).append(record)
    leases = {lease.node_id: lease for lease in kernel.ledger.closed if not lease.void}
    off_s, taken_s = 0.0, 0.0
    for node_id, records in by_node.items():
        lease = leases.get(node_id)
        if lease is None:
            continue
        off_s = max(off_s, abs(lease.start_us - microseconds(records[0].launched_s)) / 1e6)
        if records[0].ended_s is not None:
            end_off_s = (lease.end_us - microseconds(records[0].ended_s)) / 1e6
            if records[0].taken:
                taken_s = max(taken_s, abs(end_off_s))
            else:
                off_s = max(off_s, abs(end_off_s))
    return Story(
        seed=seed,
        calls=cloud.calls.total(),
        lives=lives,
        instances=len(cloud.records),
        faults=cloud.faults,
        leaked=[record.id for record in cloud.records.values() if record.ended_s is None],
        doubles=[node_id for node_id, records in by_node.items() if len(records) > 1],
        ledger_off_s=off_s,
        taken_off_s=taken_s,
        unpaired=sorted(leases.keys() ^ by_node.keys()),
        virtual_s=virtual_s,
    )

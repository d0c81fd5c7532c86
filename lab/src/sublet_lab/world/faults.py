"""Faults, kind by kind. Each says whether it had an effect: one that never has makes seeds look green."""

from __future__ import annotations

import random

from sublet.domain.money import Price
from sublet.runtime.controller.money.timekeeping import MARK_EVERY_S
from sublet.wire import messages as wire
from sublet_lab.world.cloud import Instance, NodeWorker
from sublet_lab.world.ec2 import Ec2Cloud
from sublet_lab.world.kinds.archives import ARCHIVE_KINDS
from sublet_lab.world.kinds.asking import ASKING_KINDS
from sublet_lab.world.kinds.clouds import CLOUD_KINDS
from sublet_lab.world.kinds.nodes import NODE_KINDS
from sublet_lab.world.kinds.slow import SLOW_KINDS
from sublet_lab.world.kinds.stores import STORE_KINDS
from sublet_lab.world.kinds.users import USER_KINDS
from sublet_lab.world.kinds.workers import WORKER_KINDS
from sublet_lab.world.network import CONTROLLER
from sublet_lab.world.stage import Kind, Stage
from sublet_lab.world.story import Fault

AT_COMMIT, AT_CALL, AT_REQUEST = "crash_at", "crash_at_call", "crash_at_request"
# ... whose seed is twice the number of the commit, and one more: after it, not before
OUTAGES_S = (2.0, 20.0, 90.0)
CUTS_S = (15.0, 27.0, 35.0, 60.0, 150.0)  # of a host: shorter than any silence, about as long, longer than a lease
LONGEST_SLEEP_S = 90.0  # of a controller that wakes up again
LONGEST_PAUSE_S = 30.0  # until a release is tried again
JUMPS_S = (3600.0, -3600.0, 86_400.0, -300.0)
RENT_LIES = ("done, but an error", "error", "refused", "slow")
RELEASE_LIES = ("error", "done, but an error")
LIST_LIES = ("error", "invisible")


def schedule(stage: Stage) -> None:
    """Each fault of the story at its time; before all others, those that count commits from the first."""
    for fault in stage.story.faults:
        if fault.kind in (AT_COMMIT, AT_CALL, AT_REQUEST):
            _crash_at(stage, fault.kind, fault.rng // 2, before=fault.rng % 2 == 0)
            continue
        stage.world.at(stage.world.began_s + fault.at_s, _strike, stage, fault)


def _crash_at(stage: Stage, kind: str, number: int, *, before: bool) -> None:
    if kind == AT_COMMIT:
        stage.disk.crash_in(number, before=before)
    elif kind == AT_CALL:
        stage.controllers.fence.crash_in(number, before=before)
    elif isinstance(stage.cloud, Ec2Cloud):
        stage.cloud.on_crash = stage.controllers.crash
        stage.cloud.crash_in(number, before=before)


def _strike(stage: Stage, fault: Fault) -> None:
    if not stage.calm:
        stage.hits[fault.kind] += 1
        stage.victim = ""
        worked = _kind(fault.kind)(stage, fault.random())
        stage.effects[fault.kind] += bool(worked)
        stage.on_fault(fault, worked)


def _kind(name: str) -> Kind:
    return next(kinds[name] for kinds in (KINDS, *CLOUD_KINDS.values()) if name in kinds)


# ---------------------------------------------------------------------- controllers


def _crash_commit(stage: Stage, rng: random.Random) -> None:
    stage.disk.crash_in(rng.randrange(12), before=rng.random() < 0.5, struck=stage.later("crash_commit"))


def _kill_controller(stage: Stage, rng: random.Random) -> bool:
    process = stage.controllers.process
    if process is None or process.dead:
        return False
    stage.controllers.crash(process, silent=rng.random() < 0.3)
    return True


def _restart_machine(stage: Stage, rng: random.Random) -> bool:
    process = stage.controllers.process
    if process is None or process.dead:
        return False
    clock, now_s = stage.controllers.clock, stage.world.now_s
    if rng.random() < 0.5:
        clock.set_by(rng.uniform(-120.0, 120.0), now_s)  # it has no battery, and NTP comes later
    # Unknown: how long it lived after its last mark, charged in full. A clock that was set since says anything, and
    # is believed up to a lease; one that slept till now has left no mark meanwhile, and may be charged for too little.
    asleep_s = LONGEST_SLEEP_S if process.stopped_until_s > now_s - MARK_EVERY_S else 0.0
    wrong_s = stage.story.lease_s if clock.set_s > now_s - MARK_EVERY_S - asleep_s else 0.0
    # Nor has one left any that had not recovered yet from the restart before: all since then hangs on the clock alone.
    burn = stage.cloud.burn_grains_per_s()
    stage.most_over_grains += burn * (MARK_EVERY_S + wrong_s)
    stage.clock_off_s += MARK_EVERY_S + wrong_s
    stage.most_under_grains += burn * (asleep_s + (wrong_s if clock.set_forward else 0.0))  # set back again too far
    if not stage.controllers.ready:
        stage.most_under_grains += max(burn, stage.burn_at_boot) * (now_s - clock.on_s)
    stage.burn_at_boot = burn
    stage.controllers.crash(process, machine=True)
    return True


def _stop_controller(stage: Stage, rng: random.Random) -> bool:
    process = stage.controllers.process
    if process is None or process.dead:
        return False
    process.stop_for(rng.uniform(1.0, LONGEST_SLEEP_S))
    stage.unpaid_until_s = max(stage.unpaid_until_s, process.stopped_until_s)
    return True


def _second_controller(stage: Stage, rng: random.Random) -> bool:
    """It sleeps, or is cut off, and another one is started on its store; then it wakes up."""
    return stage.controllers.succeed(rng.uniform(1.0, 120.0))


def _policy(stage: Stage, rng: random.Random) -> None:
    policy = stage.controllers.policy
    policy.fails, policy.failed = rng.randint(1, 3), stage.later("policy")


def _policy_hangs(stage: Stage, rng: random.Random) -> None:
    policy = stage.controllers.policy
    policy.hangs, policy.hung = rng.randint(1, 2), stage.later("policy_hangs")


def _clock(stage: Stage, rng: random.Random) -> None:
    """The running one has its own time: the next to start asks this clock how long there was none."""
    stage.controllers.clock.set_by(rng.choice(JUMPS_S), stage.world.now_s)
    struck = stage.later("clock")
    stage.controllers.started.append(lambda _: struck())


def _flags(stage: Stage, rng: random.Random) -> None:
    """From now on there are none. The effect is a start without."""
    stage.controllers.without_flags, stage.controllers.bare = True, stage.later("flags")
    process = stage.controllers.process
    if process is not None and not process.dead:
        stage.controllers.crash(process, silent=rng.random() < 0.3)


def _full_disk(stage: Stage, rng: random.Random) -> None:
    stage.disk.fill(stage.later("full_disk"))
    stage.world.after(rng.uniform(5.0, 60.0), stage.disk.make_room)


# ---------------------------------------------------------------------- nodes and workers


def _alive(stage: Stage) -> list[Instance]:
    return stage.cloud.alive()


def _workers(stage: Stage) -> list[NodeWorker]:
    return [w for instance in _alive(stage) if instance.node is not None for w in instance.node.workers]


def _notice(stage: Stage, rng: random.Random) -> bool:
    if not (alive := _alive(stage)):
        return False
    victim, in_s = rng.choice(alive), rng.choice([120.0, 30.0, 5.0])
    stage.victim = f"{victim.node_id}, in {in_s:.0f} s"
    stage.cloud.notice(victim, in_s)
    if rng.random() < 0.8:  # else it is taken back, without word
        stage.world.after(in_s, lambda: stage.cloud.take(victim, told=True))
    return True


def _take_told(stage: Stage, rng: random.Random) -> bool:
    if not (alive := _alive(stage)):
        return False
    victim = rng.choice(alive)
    stage.victim = victim.node_id
    stage.cloud.take(victim, told=True)
    return True


def _take_untold(stage: Stage, rng: random.Random) -> bool:
    if not (alive := _alive(stage)):
        return False
    victim = rng.choice(alive)
    stage.victim = victim.node_id
    stage.cloud.take(victim, told=False)
    return True


def _kill_worker(stage: Stage, rng: random.Random) -> bool:
    if not (workers := _workers(stage)):
        return False
    victim = rng.choice(workers)
    stage.victim = victim.id
    victim.exit(-9)
    return True


def _hang_worker(stage: Stage, rng: random.Random) -> bool:
    if not (workers := _workers(stage)):
        return False
    victim = rng.choice(workers)
    stage.victim, victim.hung = victim.id, True
    return True


# ---------------------------------------------------------------------- the network


def _part_node(stage: Stage, rng: random.Random) -> bool | None:
    """The effect is a packet that does not pass."""
    if not (alive := _alive(stage)):
        return False
    host = rng.choice(alive).node_id
    ways = [(host, CONTROLLER), (CONTROLLER, host)]
    if rng.random() < 0.4:
        ways = [rng.choice(ways)]
    for_s = rng.choice(OUTAGES_S)
    stage.victim = f"{' and '.join(f'{here} -> {there}' for here, there in ways)}, for {for_s:.0f} s"
    stage.network.block(*ways, struck=stage.later("part_node"))
    stage.parted_until_s[host] = max(stage.parted_until_s.get(host, 0.0), stage.world.now_s + for_s)
    stage.world.after(for_s, _heal, stage, ways)
    return None


def _cut_off(stage: Stage, rng: random.Random) -> bool | None:
    """A host that is out of reach in both directions, and that lives on. Likewise."""
    hosts = sorted({instance.node_id for instance in _alive(stage)})
    if not hosts:
        return False
    host, for_s = rng.choice(hosts), rng.choice(CUTS_S)
    ways = [way for other in (CONTROLLER, *hosts) if other != host for way in ((host, other), (other, host))]
    stage.victim = f"{host}, for {for_s:.0f} s"
    stage.network.block(*ways, struck=stage.later("cut_off"))
    stage.parted_until_s[host] = max(stage.parted_until_s.get(host, 0.0), stage.world.now_s + for_s)
    stage.world.after(for_s, _heal, stage, ways)
    return None


def _part_peers(stage: Stage, rng: random.Random) -> bool | None:
    """Likewise."""
    hosts = sorted({instance.node_id for instance in _alive(stage)})
    if len(hosts) < 2:
        return False
    here, there = rng.sample(hosts, 2)
    stage.victim = f"{here} and {there}"
    ways = [(here, there), (there, here)]
    stage.network.block(*ways, struck=stage.later("part_peers"))
    stage.world.after(rng.choice(OUTAGES_S), _heal, stage, ways)
    return None


def _heal(stage: Stage, ways: list[tuple[str, str]]) -> None:
    if not stage.calm:
        stage.network.unblock(*ways)


def _slow_net(stage: Stage, rng: random.Random) -> None:
    stage.network.slowness, stage.network.slowed = rng.choice([10.0, 100.0]), stage.later("slow_net")
    stage.world.after(30.0, _quick_net, stage)


def _quick_net(stage: Stage) -> None:
    stage.network.slowness = 1.0


def _reset_line(stage: Stage, rng: random.Random) -> bool:
    if not stage.network.connections:
        return False
    rng.choice(stage.network.connections).reset()
    return True


def _hole(stage: Stage, rng: random.Random) -> bool | None:
    if not stage.network.connections:
        return False
    rng.choice(stage.network.connections).swallow(stage.later("hole"))
    return None


def _forge(stage: Stage, rng: random.Random) -> bool:
    """A node speaks for a worker of another one."""
    controller = stage.controllers.controller
    speakers = [i for i in _alive(stage) if i.node is not None and i.node.connected]
    if controller is None or not speakers:
        return False
    speaker = rng.choice(speakers)
    stage.victim = speaker.node_id
    groups = [record.group for record in controller.records.values()]
    others = [w.id for group in groups for w in group.workers.values() if w.node_id != speaker.node_id]
    if not others or speaker.node is None:
        return False
    victim = rng.choice(others)
    words: list[wire.ToController] = [
        wire.FromWorker(message=wire.Finished(worker_id=victim, step=1, done=1.0)),
        wire.WorkerDown(worker_id=victim, code=1, error="forged"),
        wire.FromWorker(
            message=wire.Saved(worker_id=victim, step=10**6, done=1.0, seconds=0.0, blocked_s=0.0, size_bytes=1)
        ),
    ]
    speaker.node.say(rng.choice(words))
    return True


def _wild_report(stage: Stage, rng: random.Random) -> bool:
    """A worker reports something unbelievable."""
    speakers = [i.node for i in _alive(stage) if i.node is not None and i.node.connected and i.node.workers]
    if not speakers:
        return False
    node = rng.choice(speakers)
    worker = rng.choice(list(node.workers))
    stage.victim = worker.id
    wild = rng.choice([1e-300, 1e300, 0.0, -1.0, 1e18])
    words: list[wire.FromWorkerMessage] = [
        wire.Stepped(worker_id=worker.id, generation=10**9, step=10**9, done=wild, epoch=0, loss=wild, step_s=wild),
        wire.Busy(worker_id=worker.id),
        wire.SaveFailed(worker_id=worker.id, step=-1, why="x" * 10_000),
        wire.Leading(worker_id=worker.id, generation=10**9, host="nowhere", port=1),
    ]
    node.say(wire.FromWorker(message=rng.choice(words)))
    return True


# ---------------------------------------------------------------------- the cloud


def _rent_lie(stage: Stage, rng: random.Random) -> None:
    stage.victim = rng.choice(RENT_LIES)
    stage.cloud.lie("rent", stage.victim, rng.uniform(5.0, 120.0), stage.later("rent_lie"))


def _release_lie(stage: Stage, rng: random.Random) -> None:
    for_s = rng.uniform(2.0, 60.0)
    stage.victim = rng.choice(RELEASE_LIES)
    struck = stage.later("release_lie", stage.not_given_back(for_s + LONGEST_PAUSE_S))
    stage.cloud.lie("release", stage.victim, for_s, struck)


def _list_lie(stage: Stage, rng: random.Random) -> None:
    stage.victim = rng.choice(LIST_LIES)
    stage.cloud.lie("list", stage.victim, rng.uniform(5.0, 120.0), stage.later("list_lie"))


def _sold_out(stage: Stage, rng: random.Random) -> None:
    stage.victim = rng.choice(list(stage.cloud.offers)).id
    stage.cloud.sell_out(stage.victim, rng.uniform(10.0, 200.0), stage.later("sold_out"))


def _reprice(stage: Stage, rng: random.Random) -> None:
    offer = rng.choice(list(stage.cloud.offers))
    stage.victim, price = offer.id, Price(int(offer.price.micro_usd_per_h * rng.uniform(0.4, 2.0)))
    stage.cloud.reprice(offer.id, price, stage.later("reprice"))


KINDS: dict[str, Kind] = {
    "crash_commit": _crash_commit,
    "kill_controller": _kill_controller,
    "restart_machine": _restart_machine,
    "stop_controller": _stop_controller,
    "second_controller": _second_controller,
    "policy": _policy,
    "policy_hangs": _policy_hangs,
    "clock": _clock,
    "flags": _flags,
    "full_disk": _full_disk,
    "notice": _notice,
    "take_told": _take_told,
    "take_untold": _take_untold,
    "kill_worker": _kill_worker,
    "hang_worker": _hang_worker,
    "part_node": _part_node,
    "part_peers": _part_peers,
    "cut_off": _cut_off,
    "slow_net": _slow_net,
    "reset_line": _reset_line,
    "hole": _hole,
    "forge": _forge,
    "wild_report": _wild_report,
    "rent_lie": _rent_lie,
    "release_lie": _release_lie,
    "list_lie": _list_lie,
    "sold_out": _sold_out,
    "reprice": _reprice,
    **NODE_KINDS,
    **USER_KINDS,
    **WORKER_KINDS,
    **STORE_KINDS,
    **SLOW_KINDS,
    **ASKING_KINDS,
    **ARCHIVE_KINDS,
}

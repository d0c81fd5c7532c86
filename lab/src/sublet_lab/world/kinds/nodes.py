"""Faults of a machine: of its agent, its processes, its clock, its disk and its metadata."""

from __future__ import annotations

import contextlib
import random

from sublet.wire.lines import to_line
from sublet.wire.messages import Ping, SaveFailed
from sublet_lab.world.cloud import Instance
from sublet_lab.world.network import CONTROLLER
from sublet_lab.world.node import WorldNode
from sublet_lab.world.stage import Kind, Stage

AWAY_S = (2.0, 20.0, 60.0)
JUMPS_S = (5.0, -5.0, 3600.0, -3600.0)
WARNINGS_S = (120.0, 30.0, 5.0)
FLOOD_LINE, FLOOD_LINES, FLOOD_S = 200_000, 30, 0.02  # bytes; more in all than an agent keeps; between two
BLOCKED_S = 12.0  # less than a line may be silent
MOODS = ("down", "silent", "odd")


def nodes_of(stage: Stage) -> list[tuple[Instance, WorldNode]]:
    """Those on which the shipped agent runs."""
    found = [(instance, instance.node) for instance in stage.cloud.alive()]
    return [(instance, node) for instance, node in found if isinstance(node, WorldNode) and node.booted]


def _chosen(stage: Stage, rng: random.Random, nodes: list[tuple[Instance, WorldNode]]) -> tuple[Instance, WorldNode]:
    found = rng.choice(nodes)
    stage.victim = found[0].node_id
    return found


def _kill_agent(stage: Stage, rng: random.Random) -> bool:
    """SIGKILL: its workers go with it, and the machine when its lease is not renewed."""
    if not (nodes := nodes_of(stage)):
        return False
    _chosen(stage, rng, nodes)[1].kill_agent()
    return True


def _stop_agent(stage: Stage, rng: random.Random) -> bool:
    """SIGSTOP, as a machine that swaps: workers go on, without answers."""
    if not (nodes := nodes_of(stage)):
        return False
    instance, node = _chosen(stage, rng, nodes)
    node.stop_for(rng.choice(AWAY_S))
    parted = stage.parted_until_s
    parted[instance.node_id] = max(parted.get(instance.node_id, 0.0), node.stopped_until_s)
    return True


def _end_agent(stage: Stage, rng: random.Random) -> bool:
    """SIGTERM, as a user of the machine may send."""
    if not (nodes := nodes_of(stage)):
        return False
    _chosen(stage, rng, nodes)[1].ask_to_go()
    return True


def _no_forks(stage: Stage, rng: random.Random) -> bool | None:
    """The next workers of a machine cannot be started."""
    if not (nodes := nodes_of(stage)):
        return False
    processes = _chosen(stage, rng, nodes)[1].processes
    processes.refuses, processes.refused = rng.randint(1, 3), stage.later("no_forks")
    return None


def _babble(stage: Stage, rng: random.Random) -> bool:
    """A worker writes on its line what is no message of its own: a library that found the descriptor."""
    lines = [line for _, node in nodes_of(stage) for line in node.processes.lines()]
    if not lines:
        return False
    words = [
        b"\n".join([b'{"type":"Ready","worker_id":"somebody else"}', b'{"type":"Dismiss"}', b"not json", b"\xff", b""]),
        b"x\n" * 1500,  # more than is borne
        b"y" * 2_000_000,  # no end of a line
        b'{"type":"Stepped","worker_id":"',
    ]
    try:
        rng.choice(lines).send(rng.choice(words))
    except OSError:
        return False
    return True


def _flood(stage: Stage, rng: random.Random) -> bool:
    """A worker has more to say than anybody can send: a script whose every save fails, with a page of reasons."""
    found = [(node, pid) for _, node in nodes_of(stage) for pid in node.processes.running]
    if not found:
        return False
    node, pid = rng.choice(found)
    program = node.processes.running[pid]
    stage.victim = program.id
    line = to_line(SaveFailed(worker_id=program.id, step=1, why="x" * FLOOD_LINE))

    def say(left: int) -> None:
        with contextlib.suppress(OSError):
            if pid in node.processes.running and left:
                node.processes.line(pid).send(line)
                stage.world.after(FLOOD_S, say, left - 1)

    if rng.random() < 0.5:  # and it is not taken off its hands
        ways = [(node.host, CONTROLLER)]
        stage.network.block(*ways)
        stage.parted_until_s[node.host] = max(stage.parted_until_s.get(node.host, 0.0), stage.world.now_s + BLOCKED_S)
        stage.world.after(BLOCKED_S, stage.network.unblock, *ways)
    say(FLOOD_LINES)
    return True


def _odd_orders(stage: Stage, rng: random.Random) -> bool:
    """Messages of a newer controller to an older agent: words that it does not know, or cannot follow."""
    if not (connections := stage.network.connections):
        return False
    words = [
        b'{"type":"Telepathy","worker_id":"w"}\n',
        to_line(Ping()),
        b'{"type":"StartWorker","worker_id":"odd","job_id":"odd","argv":[]}\n',
        b'{"type":"EndWorker","worker_id":"odd","grace_s":1e400}\n',
        b'{"type":"SaveNow","worker_id":"odd"}\n',
        b"\n\n{}\n",
    ]
    rng.choice(connections).transport.write(b"".join(rng.sample(words, rng.randint(1, 4))))
    return True


def _no_storage(stage: Stage, rng: random.Random) -> bool | None:
    """The file server is away: any request for a file is told that the handle is stale."""
    if not (nodes := nodes_of(stage)):
        return False
    storage = nodes[0][1].site.storage
    storage.missed = stage.later("no_storage")
    if rng.random() < 0.5:
        storage.gone = True
    else:
        storage.flaky = random.Random(rng.random())  # noqa: S311 - no secret
    stage.world.after(rng.choice(AWAY_S), storage.come_back)
    return None


def _node_clock(stage: Stage, rng: random.Random) -> bool | None:
    """The clock of a machine is set. The effect is a look at it there."""
    if not (nodes := nodes_of(stage)):
        return False
    instance, node = _chosen(stage, rng, nodes)
    clock = node.site.clocks[instance.node_id]
    clock.jump_s, clock.asked = clock.jump_s + rng.choice(JUMPS_S), stage.later("node_clock")
    return None


def _told_inside(stage: Stage, rng: random.Random) -> bool | None:
    """The cloud warns the machine itself, in words that can be read or not; and takes it, or not.

    The effect is a question on it.
    """
    nodes = [(instance, node) for instance, node in nodes_of(stage) if node.service is not None]
    if not nodes:
        return False
    (instance, node), in_s = _chosen(stage, rng, nodes), rng.choice(WARNINGS_S)
    assert node.service is not None
    node.service.struck = stage.later("told_inside")
    how = rng.choice(["interrupt", "interrupt", "recommend", "garble", "mood"])
    if how == "mood":
        node.service.mood = rng.choice(MOODS)
        stage.world.after(in_s, node.service.recover)
        return None
    if how == "interrupt":
        node.service.interrupt(in_s)
    elif how == "garble":
        node.service.garble()
    else:
        node.service.recommend()
    if how != "recommend" and rng.random() < 0.7:
        stage.world.after(in_s, lambda: stage.cloud.take(instance, told=rng.random() < 0.5))
    return None


NODE_KINDS: dict[str, Kind] = {
    "kill_agent": _kill_agent,
    "stop_agent": _stop_agent,
    "end_agent": _end_agent,
    "no_forks": _no_forks,
    "babble": _babble,
    "flood": _flood,
    "odd_orders": _odd_orders,
    "no_storage": _no_storage,
    "node_clock": _node_clock,
    "told_inside": _told_inside,
}

"""The content of one seed: a script, so many hosts, and their faults with time and duration."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from sublet_lab.box.claim import NoBox
from sublet_lab.hosts.faults import HostFault, Scene

SCRIPTS = ("sdk", "sdk", "ddp", "trainer")
STEPS = (120, 160)
NOTICES_S = (3.0, 20.0)
UNPLUGGED_S = (5.0, 40.0)
AWAY_S = (1.0, 10.0)
FIRST, LAST = 0.1, 0.6  # of the steps: what comes later may find the job at its end
KINDS = ("loss", "notice", "unplug", "unplug", "controller", "slow")


@dataclass(frozen=True, slots=True)
class Draw:
    """The draw of one seed."""

    seed: int
    script: str
    nodes: int
    steps: int
    blows: tuple[HostFault, ...]


def draw(seed: int) -> Draw:
    """The same for the same seed."""
    rng = random.Random(f"hosts/{seed}")  # noqa: S311 - no secret
    script, nodes, steps = rng.choice(SCRIPTS), rng.choice((2, 3)), rng.choice(STEPS)
    times = sorted(round(rng.uniform(FIRST, LAST), 2) for _ in range(rng.choice((1, 1, 2))))
    return Draw(seed, script, nodes, steps, tuple(_blow(rng, at) for at in times))


def _blow(rng: random.Random, at: float) -> HostFault:
    kind, which = rng.choice(KINDS), rng.random()

    def host(scene: Scene) -> str:
        return scene.nodes[int(which * len(scene.nodes))]

    if kind == "loss":
        return HostFault("a node without notice", lambda scene: scene.box.host_of(host(scene)).cut_off(), at=at)
    if kind == "notice":
        lead_s = round(rng.uniform(*NOTICES_S), 1)
        return HostFault(
            f"a node with {lead_s:g} s", lambda scene: scene.box.host_of(host(scene)).notice(lead_s), at=at
        )
    if kind == "unplug":
        for_s = round(rng.uniform(*UNPLUGGED_S), 1)
        return HostFault(
            f"unplugged for {for_s:g} s", lambda scene: scene.box.host_of(host(scene)).unplug(for_s), at=at
        )
    if kind == "controller":
        return _killed(round(rng.uniform(*AWAY_S), 1), at)
    return _slowed(host, round(rng.uniform(10.0, 60.0)), round(rng.uniform(0.0, 1.0), 1), at)


def _killed(away_s: float, at: float) -> HostFault:
    def strike(scene: Scene) -> None:
        scene.server.kill()
        time.sleep(away_s)
        scene.server.start()

    return HostFault(f"the controller away for {away_s:g} s", strike, at=at)


def _slowed(host: Callable[[Scene], str], delay_ms: float, loss_percent: float, at: float) -> HostFault:
    """Without netem in the kernel, the cable is out for a moment instead."""

    def strike(scene: Scene) -> None:
        struck = scene.box.host_of(host(scene))
        try:
            struck.machine.cable.slow(delay_ms, loss_percent)
        except NoBox:
            struck.unplug(1.0)

    return HostFault(f"{delay_ms:g} ms and {loss_percent:g} % on a link (or 1 s without)", strike, at=at)

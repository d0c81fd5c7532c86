"""Faults of hosts in the middle of a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sublet_lab.box.hypervisor import Box
from sublet_lab.hosts.server import Server

LEASE_S = 60.0  # of the box's nodes, but in one row
AWS_LEASE_S, FIVE_MINUTES_S = 900.0, 300.0  # Sublet's default on AWS, and a third of it
PACE_S = 0.1  # of a step
SLOW_S = 1.8  # ... where a host is away, so that a job is not over before it is back
NOTICE_S = 10.0  # for EC2's 120; jobs go on for longer than that
SHORT_S, LONG_S = 30.0, 90.0  # of a partition: half a lease, and a lease and a half
AWAY_S = 5.0  # that the controller is
STRIKE_AT = 0.25  # of the steps


@dataclass(frozen=True, slots=True)
class Scene:
    """The possible targets of a fault; `nodes` are the job's, that of rank 0 first."""

    box: Box
    server: Server
    nodes: Sequence[str]


Strike = Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class HostFault:
    """`takes_all`: no holder of the state is left. `counted`: what the controller must have counted of it.

    `takes_rank_0`: the host on which one saves for all is gone. It comes after this share of the steps (`at`), once the
    job is as wide as it may be. `anchored`: the controller is on a controller host. `sdk_only`: other scripts are not
    tried. `comes_back`: the job is as wide again before it ends. Then a step is shared, or a policy would not want it
    back.
    """

    name: str
    strike: Strike | None = None
    takes_all: bool = False
    takes_rank_0: bool = False
    counted: str = ""
    at: float = STRIKE_AT
    on_host: bool = False
    sdk_only: bool = False
    comes_back: bool = False
    lease_s: float = LEASE_S


def _notice(scene: Scene) -> None:
    scene.box.host_of(scene.nodes[0]).notice(NOTICE_S)


def _loss(scene: Scene) -> None:
    scene.box.host_of(scene.nodes[0]).cut_off()


def _all(scene: Scene) -> None:
    scene.box.cut_off_all()


def _controller(scene: Scene) -> None:
    scene.server.kill()
    time.sleep(AWAY_S)
    scene.server.start()


def _partition(for_s: float) -> Strike:
    return lambda scene: scene.box.host_of(scene.nodes[-1]).unplug(for_s)


CALM = HostFault("nothing")
HOST_FAULTS = (
    HostFault(f"a node with {NOTICE_S:g} s of notice", _notice, takes_rank_0=True, counted="preemptions_noticed"),
    HostFault("a node without notice", _loss, takes_rank_0=True, counted="preemptions_unnoticed"),
    HostFault("all nodes at once", _all, takes_all=True, takes_rank_0=True, counted="preemptions_unnoticed"),
    HostFault(f"the controller killed, back after {AWAY_S:g} s", _controller),
    HostFault(f"a node unplugged for {SHORT_S:g} s", _partition(SHORT_S)),
    HostFault(f"a node unplugged for {LONG_S:g} s", _partition(LONG_S)),
    HostFault(
        f"a node unplugged for {FIVE_MINUTES_S:g} s, a lease of {AWS_LEASE_S:g} s",
        _partition(FIVE_MINUTES_S),
        at=0.1,
        sdk_only=True,
        comes_back=True,
        lease_s=AWS_LEASE_S,
    ),
    # Steps of other scripts are counted by what they printed, and that is not in a controller host's backup.
    HostFault("the controller host killed, another rented", _controller, takes_all=True, on_host=True, sdk_only=True),
)

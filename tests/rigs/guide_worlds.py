"""What stands for the machines of others where a page rents, asks or joins them."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rigs.guide_commands import Command
from tests.rigs.guide_stage import Stage


@contextmanager
def staged(folder: Path, commands: Sequence[Command]) -> Iterator[Stage]:
    """A stage in the world that the commands need: by ssh, of Ray, of a cloud, or this machine alone."""
    typed = "\n".join(command.plain for command in commands)
    worlds = {r"--hosts \S+\.toml": _hosts, r"--provider ray": _ray, r"--on aws": _account}
    world = next((made for need, made in worlds.items() if re.search(need, typed)), _here)
    with world(folder, commands) as stage:
        try:
            yield stage
        finally:
            stage.end()


@contextmanager
def _here(folder: Path, commands: Sequence[Command]) -> Iterator[Stage]:
    yield Stage(folder, commands, {})


@contextmanager
def _hosts(folder: Path, commands: Sequence[Command]) -> Iterator[Stage]:
    """Machine and controller share a loopback, so that the way back has two ends on it: one machine has the tunnel."""
    from tests.rigs.ssh_hosts import SshRig

    rig = SshRig()
    host = rig.hosts[0]
    with socket.socket() as one, socket.socket() as two:
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in (one, two)]
    lines = [f"python = {sys.executable!r}", f"agents_port = {ports[0]}", f"tunnel_port = {ports[1]}", "preload = []"]
    lines += ["[[hosts]]", f"name = {host.name!r}", "host = '127.0.0.1'", f"port = {host.port}", "slots = 2"]
    lines += [f"user = {host.user!r}", f"key = {host.key!r}", f"host_key = {host.host_key!r}"]
    stage = Stage(folder, commands, {})
    (stage.folder / "hosts.toml").write_text("\n".join(lines), encoding="utf-8")
    try:
        yield stage
    finally:
        assert rig.clean_up() == []


@contextmanager
def _ray(folder: Path, commands: Sequence[Command]) -> Iterator[Stage]:
    from tests.rigs.ray_cluster import ray_cluster

    nodes, _ = ray_cluster()
    yield Stage(folder, commands, {"head:6379": nodes.address}, RAY_ADDRESS=nodes.address)


@contextmanager
def _account(folder: Path, commands: Sequence[Command]) -> Iterator[Stage]:
    """An account with nothing in it, whose instances are hosts that boot."""
    from sublet_lab.box.claim import NoBox
    from sublet_lab.box.hypervisor import Box
    from sublet_lab.box.image import Image
    from sublet_lab.box.renting import write_config
    from sublet_lab.box.sshd import service

    try:
        box = Box(Image(env={"OMP_NUM_THREADS": "1"}, files=service(), sublet=False))
    except NoBox as error:
        pytest.skip(str(error))
    with box:
        stage = Stage(folder, commands, {}, **box.account)
        box.cloud.client("iam").create_instance_profile(InstanceProfileName="role")
        anchor = {"anchor_type": "t3.small", "anchor_user": "root", "anchor_subnet": box.subnet()}
        write_config(stage.state, box, 7070, {**anchor, "anchor_profile": "role", "controller": "", "preload": []})
        yield stage
        assert box.troubles == []

"""Clouds to test on, by the names that providers and engines are registered under: whoever registers one adds a rig."""

from __future__ import annotations

from sublet.testing.rigs import LocalRig
from tests.rigs.boxed_lines import why_no_hosts
from tests.rigs.moto_cloud import AwsRig


def ray_rig(folder=None):
    """A Ray cluster; its tests are skipped where Ray is not installed."""
    from tests.rigs.ray_cluster import RayRig

    return RayRig(folder)


def ssh_rig(folder=None):
    """Machines behind an ssh server; skipped where asyncssh is not installed."""
    from tests.rigs.ssh_hosts import SshRig

    return SshRig(folder)


def aws_rig():
    """An account whose instances are hosts that boot, where such can be made."""
    if why_no_hosts():
        return AwsRig()
    from tests.rigs.boxed_cloud import BoxedAwsRig

    return BoxedAwsRig()


RIGS = {"aws": aws_rig, "local": LocalRig, "ray": ray_rig, "ssh": ssh_rig}  # registered name -> rig

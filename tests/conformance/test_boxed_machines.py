"""Providers of machines that are there already, on hosts that share nothing: `make test SIZE=full`, as root."""

from __future__ import annotations

import pytest

from sublet.testing.conformance.providers import ProviderSuite
from tests.rigs.boxed_lines import why_no_hosts


@pytest.mark.long
class TestSsh(ProviderSuite):
    """Each machine with its own address, disk and processes; nothing of ours is installed there."""

    registered_as = "ssh"

    def make_rig(self):
        if why := why_no_hosts():
            pytest.skip(why)
        from tests.rigs.boxed_ssh import BoxedSshRig

        return BoxedSshRig()


@pytest.mark.long
class TestRay(ProviderSuite):
    """Each node of the cluster with its own address, disk and processes; Sublet is installed there, as Ray is."""

    registered_as = "ray"

    def make_rig(self):
        if why := why_no_hosts():
            pytest.skip(why)
        from tests.rigs.boxed_ray import BoxedRayRig

        return BoxedRayRig()

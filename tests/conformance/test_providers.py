"""Every registered provider passes the suite for providers, on a rig of its own."""

from __future__ import annotations

from sublet import plugins
from sublet.testing.conformance.providers import ProviderSuite
from tests.rigs.clouds import RIGS

NAMES = plugins.names("sublet.providers")


def suite_of(name):
    class Registered(ProviderSuite):
        registered_as = name

        def make_rig(self):
            return RIGS[name]()

    return Registered


for name in NAMES:
    globals()[f"Test_{name}"] = suite_of(name)


def test_there_are_providers_and_each_can_be_tested():
    assert "local" in NAMES
    assert set(NAMES) <= set(RIGS)

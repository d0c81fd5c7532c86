"""Names become objects, and a typo gets help."""

from __future__ import annotations

import pytest

from sublet import plugins
from sublet.errors import UnknownName
from sublet.policies.fifo import Fifo

POLICIES = "sublet.policies"


def test_names_are_sorted_and_hold_the_bundled_policies():
    found = plugins.names(POLICIES)
    assert found == sorted(found)
    assert {"equal", "fifo", "las", "max-speedup", "srtf"} <= set(found)


def test_a_name_loads_what_is_registered_under_it():
    assert plugins.load(POLICIES, "fifo") is Fifo


def test_every_registered_name_loads():
    assert all(callable(plugins.load(POLICIES, name)) for name in plugins.names(POLICIES))


def test_a_typo_gets_a_suggestion_and_speaks_of_one_policy():
    with pytest.raises(UnknownName, match="no policy is called 'max-speedpu'; did you mean max-speedup") as caught:
        plugins.load(POLICIES, "max-speedpu")
    assert caught.value.known == plugins.names(POLICIES)


@pytest.mark.parametrize(
    ("group", "kind"),
    [("sublet.engines", "engine"), ("sublet.no-such-stores", "no-such-store"), ("sublet.forecasters", "forecaster")],
)
def test_an_empty_group_has_no_names_and_says_so(group, kind):
    with pytest.raises(UnknownName) as caught:
        plugins.load(group, "zzz-not-there")
    assert caught.value.kind == kind
    assert plugins.names("sublet.nothing-is-registered-here") == []

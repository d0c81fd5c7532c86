"""Random trees, jobs, prices, losses and periods: nobody at any level ever spends a grain more than it may."""

from __future__ import annotations

import pytest

from sublet.kernel import spending
from sublet.testing.purses.__main__ import main
from sublet.testing.purses.life import live
from tests.rigs.sizes import sized


@pytest.mark.parametrize("seed", range(sized(12, 1000)))
def test_never_a_cent_over_at_any_level(seed):
    assert live(seed).broken == ""


@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_laws_see_a_tree_that_does_not_look_back_when_it_is_late(seed, monkeypatch):
    """Timers are late by up to 20 ms, 2 s and 60 s, and nobody is there now and then."""
    monkeypatch.setattr(spending, "look_back", lambda *_: [])
    assert "within every purse" in live(seed).broken


def test_the_command_tells_what_it_lived(capsys):
    assert main(["--seeds", "2", "--from", "7", "--processes", "1"]) == 0
    assert "laws broken: none" in capsys.readouterr().out

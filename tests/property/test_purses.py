"""Random trees, jobs, prices, losses and periods: nobody at any level ever spends a grain more than it may."""

from __future__ import annotations

import pytest

from sublet.testing.purses.__main__ import main
from sublet.testing.purses.life import live
from tests.rigs.sizes import sized


@pytest.mark.parametrize("seed", range(sized(12, 1000)))
def test_never_a_cent_over_at_any_level(seed):
    assert live(seed).broken == ""


def test_the_command_tells_what_it_lived(capsys):
    assert main(["--seeds", "2", "--from", "7", "--processes", "1"]) == 0
    assert "laws broken: none" in capsys.readouterr().out

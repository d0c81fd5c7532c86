"""Jobs as `ps` shows them."""

from __future__ import annotations

import pytest

from sublet.cli.print.jobs import progress_of


@pytest.mark.parametrize(
    ("progress", "had_h", "size_h", "shown"),
    [
        (0.4, None, None, "40%"),
        (None, None, None, "-"),
        (None, 0.5, 2.125, "0.5 of ~2.1 h"),
        (None, 0.0, 12.0, "0 of ~12 h"),
    ],
)
def test_progress_is_a_share_or_what_is_expected_of_scripts_that_do_not_say(progress, had_h, size_h, shown):
    assert progress_of({"progress": progress, "had_h": had_h, "size_h": size_h}) == shown

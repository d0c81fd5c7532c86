"""Our own policy passes the suite for real jobs."""

from __future__ import annotations

from typing import ClassVar

import pytest

pytest.importorskip("torch")

from sublet.testing.conformance.live import LivePolicySuite


class TestPriceLive(LivePolicySuite):
    registered_as = "price"
    settings: ClassVar = {"hurry": True}

"""Six policies pass the suite for real jobs; `make test` tries one of them, `make policies-live` all."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sublet.testing.conformance.live import LivePolicySuite
from tests.rigs.sizes import FULL

SETTINGS = {"price": {"hurry": True}, "boa": {"burn_usd_per_h": 2.0}}
NAMES = ("price", "elastic-batch", "pollux", "sia", "mip", "boa")

for name in NAMES if FULL else NAMES[:1]:
    title = f"Test_{name}"
    globals()[title] = type(title, (LivePolicySuite,), {"registered_as": name, "settings": SETTINGS.get(name, {})})

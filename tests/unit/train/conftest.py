"""Sessions here are alone, whatever this process was started under."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("SUBLET_CONTROL_FD", "SUBLET_CHECKPOINT_DIR", "SUBLET_CHECKPOINT_EVERY_S", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)

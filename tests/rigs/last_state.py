"""In place of a disk: the state of a session at its last boundary, in memory, from which the next session goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sublet.train.checkpoint.saving import Saver
from sublet.train.checkpoint.snapshot import HostCopy, Snapshot
from sublet.train.link import membership


class LastState:
    """One state, that of whoever trained last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._last: Snapshot | None = None

        def keep(_: Saver, __: float, tree: Any, *___: Any, **____: Any) -> None:
            self._last = HostCopy().take(tree())

        async def find(*_: Any) -> SimpleNamespace | None:
            return None if self._last is None else SimpleNamespace(state=self._last.state())

        monkeypatch.setattr(Saver, "tick", keep)
        monkeypatch.setattr(membership, "find", find)

    def forget(self) -> None:
        """The next session begins anew."""
        self._last = None

"""A controller that dies at a chosen point: `python -m tests.chaos.controller STATE_DIR POINT`.

A point is `before-commit:KIND` or `after-commit:KIND` (KIND an event of the kernel, or `facts`), or `before:CALL` or
`after:CALL` with a call of the provider. The controller is the real one; only its store and its provider are wrapped,
and it kills itself as kill -9 does. `none` wraps nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sublet.api import main as api_main
from sublet.runtime.controller_api import assemble
from sublet.runtime.group import states
from sublet.runtime.providers.local import build as local_build
from sublet.runtime.providers.local.provider import LocalProvider
from sublet.runtime.store import Store


def die() -> None:
    """As if the power had gone."""
    os.kill(os.getpid(), signal.SIGKILL)


class CrashingStore(Store):
    """Dies before or after the commit that has an event of the chosen kind in it."""

    when, kind = "", ""

    def append(self, at_s: float, line: str) -> None:
        """Look what it is."""
        self._seen = getattr(self, "_seen", set()) | {json.loads(line)["event"]["type"]}
        super().append(at_s, line)

    def change_job(self, job_id: str, *, spec: str | None = None, facts: str | None = None) -> None:
        """As above."""
        self._seen = getattr(self, "_seen", set()) | {"facts"}
        super().change_job(job_id, spec=spec, facts=facts)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Die on the right side of the commit."""
        outermost = self._depth == 0
        if outermost:
            self._seen: set[str] = set()
        with super().transaction():
            yield
            if outermost and self.when == "before-commit" and self.kind in self._seen:
                die()
        if outermost and self.when == "after-commit" and self.kind in self._seen:
            die()


class CrashingProvider(LocalProvider):
    """Dies before or after a call."""

    when, call = "", ""

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """One more node."""
        self._point("before", "rent")
        await super().rent(node_id, offer_id, token)
        self._point("after", "rent")

    async def release(self, node_id: str) -> None:
        """One less."""
        self._point("before", "release")
        await super().release(node_id)
        self._point("after", "release")

    async def list(self) -> Any:
        """What there is."""
        found = await super().list()
        self._point("after", "list")
        return found

    def _point(self, when: str, call: str) -> None:
        if (when, call) == (self.when, self.call):
            die()


def import_nothing() -> None:
    """Nodes that have no torch imported: a start costs a tenth, for jobs that do without."""
    LocalProvider.__init__.__kwdefaults__["preload"] = ()


def main() -> None:
    """Wrap, and be a controller."""
    if os.environ.get("CHAOS_LIGHT"):
        import_nothing()
    when, _, what = sys.argv[2].partition(":")
    if when in ("before-commit", "after-commit"):
        CrashingStore.when, CrashingStore.kind = when, what
        assemble.Store = CrashingStore  # type: ignore[attr-defined, misc]
    elif when in ("before", "after"):
        CrashingProvider.when, CrashingProvider.call = when, what
        local_build.LocalProvider = CrashingProvider  # type: ignore[attr-defined, misc]
    if (silent_s := os.environ.get("CHAOS_SILENT_S")) is not None:  # a test has no minute to wait
        states.SILENT_S = float(silent_s)
    api_main.main()


if __name__ == "__main__":
    main()

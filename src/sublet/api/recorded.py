"""The page over a history that is over: of a simulation, or of a run whose controller has ended. To look at alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from sublet import __version__
from sublet.api.client import connect
from sublet.api.server import bind, serve
from sublet.api.state import StateDir
from sublet.errors import NoSuchJob
from sublet.kernel.kernel import Kernel
from sublet.machine.wall import WALL
from sublet.runtime.controller_api.directory import Directory
from sublet.runtime.controller_api.history import Prices, PriceView, event_view
from sublet.runtime.controller_api.protocol import Api
from sublet.runtime.controller_api.tokens import Tokens
from sublet.runtime.controller_api.views import BudgetView, EventView, HealthView, JobView, NodeView
from sublet.runtime.store import Store


class RecordedApi:
    """The part of `Api` that a read-only page asks for; its history is in `store`, its prices in `kernel`."""

    def __init__(self, store: Store, *, what: str, policy: str = "", kernel: Kernel | None = None) -> None:
        self._store, self._what, self._policy, self._kernel = store, what, policy, kernel
        newest = store.history(None, 0, 1, newest=True)
        self._last = event_view(newest[0]) if newest else None
        self._over = asyncio.Event()
        self._began = WALL.monotonic()
        self.prices = _NoPrices() if kernel is None else Prices(lambda: kernel)
        self.tokens = Tokens(_Nothing(), lambda *_: None)
        self.directory = Directory(_NoNames(), is_alive=lambda _: False)

    async def run(self) -> None:
        """Until `shutdown`."""
        await self._over.wait()

    async def shutdown(self, *, end_jobs: bool = False, by: str = "") -> None:  # noqa: ARG002 - as Api has it
        """Let `run` return."""
        self._over.set()

    async def events(
        self, job_id: str | None = None, *, after: int = 0, limit: int = 1000, newest: bool = False
    ) -> Sequence[EventView]:
        """History, oldest first."""
        return [event_view(row) for row in self._store.history(job_id, after, limit, newest=newest)]

    async def jobs(self) -> Sequence[JobView]:
        """None is alive."""
        return []

    async def job(self, job_id: str) -> JobView:
        """None is alive."""
        raise NoSuchJob(job_id, ())

    async def nodes(self) -> Sequence[NodeView]:
        """All were given back."""
        return []

    async def budget(self) -> BudgetView:
        """The final budget."""
        return {
            "burn_limit_usd_per_h": None,
            "average_usd_per_h": None,
            "purse_usd": None,
            "spent_usd": 0.0 if self._last is None else self._last["usd_total"],
            "reserved_usd": 0.0,
            "left_usd": None,
            "burn_usd_per_h": 0.0,
            "exhausted": False,
            "unattended_usd": 0.0,
        }

    async def health(self) -> HealthView:
        """That it is a record, and of what."""
        return {
            "ready": True,
            "started": True,
            "why": "",
            "version": __version__,
            "provider": self._what,
            "engine": "",
            "policy": self._policy,
            "now_s": 0.0 if self._last is None else self._last["at_s"],
            "speedup": 1.0,
            "wall_up_s": WALL.monotonic() - self._began,
            "last_reconcile_wall_s": None,
            "stopping": self._over.is_set(),
            "earlier_jobs": 0,
        }


class _NoPrices:
    def list(self) -> list[PriceView]:
        return []


class _NoNames:
    records: dict[str, object] = {}  # noqa: RUF012 - read only
    named: dict[str, list[str]] = {}  # noqa: RUF012 - as above


class _Nothing:
    def get(self, key: str) -> str | None:  # noqa: ARG002 - nothing is kept
        return None

    def put(self, key: str, value: str) -> None:
        """Nothing is kept."""


def serve_recorded(
    store: Store,
    folder: Path,
    tell: Callable[[str], None],
    *,
    what: str,
    policy: str = "",
    kernel: Kernel | None = None,
) -> None:
    """Serve on loopback until an interrupt; `tell` hears of the link. Its address and token are in `folder`."""

    async def whole() -> None:
        api, state = RecordedApi(store, what=what, policy=policy, kernel=kernel), StateDir(folder)
        state.prepare()

        async def run() -> None:
            while not state.address_file.exists():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.01)
            client = connect(state.path)
            told = await asyncio.to_thread(client.post, "/v1/sessions")
            tell(f"{client.address}{told['path']}")
            await api.run()

        await serve(cast(Api, api), run, state=state, sock=bind("127.0.0.1", 0), pid=0, live=False)

    asyncio.run(whole())

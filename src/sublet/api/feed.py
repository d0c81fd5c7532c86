"""Changes, as they come, for pages that are open: server-sent events with the same values as `/v1/...` gives.

First comes `all`, then `change` after `change`: of a job or a node that was told of before, only what is otherwise.

All pages share one look: it is taken as long as anybody listens, and written once for all of them. The view of a job
costs most, so a look takes some of them: those first to which something happened, and the others in turn. The control
loop waits for a few views at a time, however many jobs and pages there are. Nodes are looked at when something has
happened since, and now and then. Events do not wait for the next look: between two looks, pages are told of new events,
with the first few jobs that they are about.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from sublet.errors import NoSuchJob
from sublet.runtime.controller_api.protocol import Api
from sublet.runtime.controller_api.remaining import forecast_of
from sublet.runtime.controller_api.views import EventView

log = logging.getLogger("sublet.api")
PERIOD_S = 0.5  # wall, between two looks at everything
GLANCES = 5  # in a period, at what has happened alone
GLANCED = 5  # jobs, in a glance
MOST_VIEWS = 50  # of jobs, in a look
AT_ONCE = 5  # ... before others have their turn
MOST_EVENTS = 500  # in a look; more wait for the next
QUIET_LOOKS = 10  # in a row, in which nothing happens, without one at nodes
BEHIND = 20  # messages that a page may not have read: then it is let go, and comes again

Rows = dict[str, dict[str, Any]]


class Feed:
    """The stream of changes of one server."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._head: dict[str, Any] = {}
        self._jobs: Rows = {}
        self._nodes: Rows = {}
        self._turn: deque[str] = deque()  # jobs, the one that was looked at longest ago first
        self._seq = 0
        self._quiet = 0  # looks since the last one at nodes in which nothing has happened
        self._all: bytes | None = None  # what a page is told first, as long as nothing is otherwise

    async def listen(self) -> AsyncGenerator[bytes, None]:
        """All there is, then what changes, until the page goes or the controller ends."""
        async with self._beginning:
            if self._looking is None or self._looking.done():
                await self._begin()
        page: asyncio.Queue[bytes | None] = asyncio.Queue(BEHIND)
        self._pages.add(page)
        try:
            if self._all is None:
                whole = {"jobs": list(self._jobs.values()), "nodes": list(self._nodes.values()), "events": []}
                self._all = _message("all", self._head | whole | {"order": list(self._jobs)})
            yield self._all
            while (message := await page.get()) is not None:
                yield message
        finally:
            self._pages.discard(page)
            if not self._pages and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _begin(self) -> None:
        newest = await self._api.events(limit=1, newest=True)
        self._seq = newest[-1]["seq"] if newest else 0
        self._jobs.clear()
        self._nodes.clear()
        self._quiet, self._all = QUIET_LOOKS, None
        self._turn = deque(self._api.directory.ids())
        await self._look(most=len(self._turn))
        self._looking = asyncio.create_task(self._look_on())

    async def _look_on(self) -> None:
        """Look until no page listens any more."""
        try:
            while not self._head.get("stopping"):
                for _ in range(GLANCES - 1):
                    await asyncio.sleep(PERIOD_S / GLANCES)
                    if (news := await self._glance()) is not None:
                        self._tell(_message("change", news))
                await asyncio.sleep(PERIOD_S / GLANCES)
                self._tell(_message("change", await self._look(most=MOST_VIEWS)))
        except Exception:  # whatever it is: a page that waits for ever looks as if nothing happened
            log.exception("open pages are told nothing more, and come again")
        for page in list(self._pages):
            self._let_go(page)

    def _tell(self, message: bytes) -> None:
        self._all = None  # a later page is not told this
        for page in list(self._pages):
            if page.full():
                self._let_go(page)
            else:
                page.put_nowait(message)

    def _let_go(self, page: asyncio.Queue[bytes | None]) -> None:
        self._pages.discard(page)
        while not page.empty():
            page.get_nowait()
        page.put_nowait(None)

    async def _glance(self) -> dict[str, Any] | None:
        """News since the last look, if any."""
        if not (events := await self._news()):
            return None
        about = list(dict.fromkeys(event["job_id"] for event in events if event["job_id"]))[-GLANCED:]
        known = set(self._api.directory.ids())
        jobs = await self._look_at([job_id for job_id in about if job_id in known])
        return self._head | {"seq": self._seq, "jobs": jobs, "nodes": [], "events": events}

    async def _news(self) -> list[EventView]:
        events = await self._api.events(after=self._seq, limit=MOST_EVENTS)
        if events:
            self._seq, self._quiet = events[-1]["seq"], QUIET_LOOKS
        return list(events)

    async def _look(self, *, most: int) -> dict[str, Any]:
        """Differences from the last look."""
        events = await self._news()
        health = await self._api.health()
        self._head = {"now_s": health["now_s"], "stopping": health["stopping"], "seq": self._seq}
        self._head |= {"budget": dict(await self._api.budget()), "health": dict(health)}
        ids = self._api.directory.ids()
        gone = self._jobs.keys() - set(ids)
        for job_id in gone:
            del self._jobs[job_id]
        jobs = await self._look_at_jobs(ids, {event["job_id"] for event in events}, most)
        self._head["forecast"] = forecast_of(self._jobs.values())
        changed, gone_nodes = await self._look_at_nodes()
        rows = {"jobs": jobs, "gone": sorted(gone), "nodes": changed, "gone_nodes": gone_nodes}
        return self._head | rows | {"events": events}

    async def _look_at_nodes(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Those that are otherwise, and the ids of those that are gone."""
        self._quiet += 1
        if self._quiet < QUIET_LOOKS:
            return [], []
        self._quiet = 0
        nodes = {node["id"]: dict(node) for node in await self._api.nodes()}
        known = self._nodes
        changed = [_otherwise(node, known.get(each, {})) for each, node in nodes.items() if known.get(each) != node]
        gone = sorted(self._nodes.keys() - nodes.keys())
        self._nodes = nodes
        return changed, gone

    async def _look_at_jobs(self, ids: Iterable[str], first: set[str], most: int) -> list[dict[str, Any]]:
        known, waiting = set(ids), set(self._turn)
        new = [job_id for job_id in ids if job_id not in waiting]  # a glance may have seen it, and not again since
        self._turn = deque(job_id for job_id in self._turn if job_id in known)
        self._turn.extend(new)
        urgent = [job_id for job_id in self._turn if job_id in first or job_id in new]
        others = [job_id for job_id in self._turn if job_id not in first and job_id not in new]
        chosen = [*urgent, *others[: max(0, most - len(urgent))]]
        changed = await self._look_at(chosen)
        looked = set(chosen)
        self._turn = deque([*(job_id for job_id in self._turn if job_id not in looked), *chosen])
        return changed

    async def _look_at(self, chosen: Sequence[str]) -> list[dict[str, Any]]:
        changed = []
        for number, job_id in enumerate(chosen):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                view = dict(await self._api.job(job_id))
            except NoSuchJob:
                continue
            if (known := self._jobs.get(job_id, {})) != view:
                self._jobs[job_id] = view
                changed.append(_otherwise(view, known))
        return changed


def _otherwise(row: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Its id, and what is not as pages know it."""
    return {name: value for name, value in row.items() if name == "id" or name not in known or known[name] != value}


def _message(kind: str, facts: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(facts, allow_nan=False)
    except ValueError:  # a loss that is no number: to a page it is not known
        text = json.dumps(_finite(facts))
    return f"event: {kind}\ndata: {text}\n\n".encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value

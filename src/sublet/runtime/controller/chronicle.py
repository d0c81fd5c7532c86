"""Collects what people are told, and writes it into the store with who held what, and what it cost, by then."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.kernel.kernel import Kernel
from sublet.machine.wall import WALL, Wall, iso_utc
from sublet.runtime.controller.history import (
    HistoryRow,
    Progress,
    SupplyNews,
    refusal_among,
    row_from_event,
    row_from_order,
    rows_from_plan,
)
from sublet.runtime.controller.repeats import Repeats
from sublet.runtime.store import Store

__all__ = ["Chronicle"]


class Chronicle:
    """`has_session(job_id)`: does the job say itself how far it is? `kept(job_id)`: what is left where nobody saved.

    `grid(job_id)`: how its workers sit, "" where its model is not cut.
    """

    def __init__(
        self,
        store: Store,
        has_session: Callable[[str], bool],
        kept: Callable[[str], str],
        grid: Callable[[str], str] = lambda _: "",
        *,
        wall: Wall = WALL,
    ) -> None:
        self._store, self._grid, self._wall = store, grid, wall
        self._supply_news, self._progress = SupplyNews(), Progress(has_session, kept)
        self._rows: list[HistoryRow] = []  # not written yet
        self._repeats = Repeats()
        self.by = ""  # whose wish it is that is told now; "" = nobody's

    @property
    def waits(self) -> bool:
        """Something is not written yet."""
        return bool(self._rows) or self._repeats.is_due(self._wall.monotonic())

    def add(self, row: HistoryRow) -> None:
        """One more; what a peer says again and again is counted, and what a user has wished is told each time."""
        now_s = self._wall.monotonic()
        self._rows += self._repeats.over(now_s)
        if self.by or self._repeats.admits(row, now_s):
            self._rows.append(self._signed(row))

    def tell(self, event: Event, actions: Sequence[Action], kernel: Kernel) -> None:
        """What people are told of an event and its orders; nothing that is done depends on it."""
        matters = not isinstance(event, news.AvailabilityChanged) or self._supply_news.matter(event, kernel)
        rows: list[HistoryRow] = []
        if isinstance(event, news.PlanMade) and refusal_among(actions) is None:  # else it decides nothing
            rows += rows_from_plan(event.plan)
        happened = row_from_event(event, kernel, self._progress)
        for row in (happened, *(row_from_order(action, kernel, self._progress) for action in actions)):
            if row is not None and (matters or row.kind != "AvailabilityChanged"):
                rows.append(row)
        self._rows += [self._signed(row) for row in rows]

    def _signed(self, row: HistoryRow) -> HistoryRow:
        return replace(row, by=self.by) if self.by else row

    def write(self, kernel: Kernel, now_s: float) -> None:
        """All that waits."""
        self._rows += self._repeats.over(self._wall.monotonic())
        if not self._rows:
            return
        at = iso_utc(self._wall)
        ready = sum(kernel.cluster.held.values())
        burn, spent = kernel.ledger.burn().usd_per_h, kernel.ledger.spent(now_s).usd
        rows = []
        for row in self._rows:
            workers = row.workers
            if workers is None and row.job_id in kernel.jobs:
                workers = kernel.jobs[row.job_id].gpus
            facts: dict[str, float | int | str | None] = {
                "workers": workers,
                "nodes_held": ready,
                "usd_per_h": burn,
                "usd_total": spent,
            }
            if row.by:
                facts["by"] = row.by
            if grid := self._grid(row.job_id):
                facts["grid"] = grid
            text = row.text.encode(errors="replace").decode()  # half a character is no text to the store
            rows.append((now_s, at, row.kind, row.job_id, row.node_id, text, json.dumps(facts)))
        self._rows.clear()
        with self._store.transaction():
            self._store.add_history(rows)

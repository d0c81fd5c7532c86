"""State of a running controller at one moment, and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sublet.api.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatus:
    """Health, budget, jobs, nodes and events at one moment."""

    health: Mapping[str, Any]
    budget: Mapping[str, Any]
    jobs: Sequence[Mapping[str, Any]]
    nodes: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]

    @property
    def over(self) -> bool:
        """Whether every job has ended or rests."""
        from sublet.runtime.controller_api.views import ENDED, RESTING

        return all(job["phase"] in ENDED | RESTING for job in self.jobs)


def fetch_status(client: Client, *, events: Sequence[Mapping[str, Any]] = ()) -> ControllerStatus:
    """Ask for it; `events` are those that are known already."""
    after = events[-1]["seq"] if events else 0
    return ControllerStatus(
        health=client.get("/v1/health"),
        budget=client.get("/v1/budget"),
        jobs=client.get("/v1/jobs")["jobs"],
        nodes=client.get("/v1/nodes")["nodes"],
        events=[*events, *client.get("/v1/events", after=after, limit=10_000)["events"]],
    )


def status_reader(client: Client) -> Callable[[], ControllerStatus]:
    """ControllerStatuss again and again, and remembers the events."""
    events: Sequence[Mapping[str, Any]] = ()

    def read() -> ControllerStatus:
        nonlocal events
        now = fetch_status(client, events=events)
        events = now.events
        return now

    return read

"""Rented nodes and their agents, as the rest of a controller sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sublet.domain.events import Event
from sublet.runtime.controller.jobs import Groups
from sublet.runtime.controller.memory import Context, Identity
from sublet.runtime.controller.nodes.leases import Leases
from sublet.runtime.controller.nodes.messages import Agents
from sublet.runtime.controller.nodes.notices import Notices
from sublet.runtime.controller.nodes.unknown_instances import OrphanReaper, unknown_among
from sublet.runtime.controller.watch import Throttling
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.providers.pacing import PacedProvider, Rates
from sublet.runtime.providers.protocol import Provider
from sublet.runtime.store import Store


def paced(provider: Provider, rates: Rates | None, context: Context, insist: Callable[[], None]) -> PacedProvider:
    """The provider, asked no faster than it lets us; `insist` raises where another controller has the store."""
    host, ear = context.host, Throttling(context.alarms)
    return PacedProvider(provider, rates, ear=ear, insist=insist, wall=host.wall, rng=host.rng)


class RentedNodes:
    """Of one provider and one engine."""

    def __init__(
        self,
        context: Context,
        groups: Groups,
        *,
        engine: Engine,
        provider: PacedProvider,
        store: Store,
        identity: Identity,
    ) -> None:
        self._inbox, self.engine, self.provider, self.groups = context.inbox, engine, provider, groups
        self.agents = Agents(context, groups, engine, first_life=not identity.life)
        self.notices = Notices(context, groups, self.agents, engine)
        self.leases = Leases(context, provider, engine, tenants=self.notices, store=store, server_id=identity.server_id)
        self.reaper = OrphanReaper(context, self.leases, provider, self.notices.has_spoken)

    async def listen(self) -> None:
        """Agents speak from now on."""
        await self.engine.open(self.agents.receive)

    async def open_market(self) -> None:
        """The provider tells from now on."""
        await self.provider.open(self.leases.take_news)

    async def unknown(self) -> Sequence[Event]:
        """Nodes that were rented after the log ends are ended; the events of that."""
        found = unknown_among(await self.provider.list(), self._inbox.kernel)
        return () if found is None else self.reaper.end_all(found, self._inbox.kernel.now_s)

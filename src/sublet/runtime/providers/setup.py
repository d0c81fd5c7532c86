"""How a provider is made by its name: what it is given, and all that a controller needs to know of it.

Every package of a provider has `build(settings, clock, store)`, registered under `sublet.providers`; nothing else of
Sublet knows which providers there are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from sublet.domain.budget import Limit
from sublet.errors import InvalidValue
from sublet.runtime.clock import Clock
from sublet.runtime.identity.authority import Authority
from sublet.runtime.providers.pacing import Rates
from sublet.runtime.providers.protocol import Provider
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store

WIND_DOWN_WALL_S = 10.0  # to save, leave and end a node whose processes are ours


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSetup:
    """A provider that has not been opened, and where the agents of its nodes come to."""

    provider: Provider
    address: str  # that the engine listens on: unix:/path, tcp:host:port or tls:host:port
    lease_s: float  # wall: an agent whose controller is silent for so long ends itself
    authority: Authority | None = None  # that signs for nodes, where the address is one with tls:
    port_field: str = ""  # the setting that the port is from, if people chose it
    limits: Mapping[str, Limit] = field(default_factory=dict)  # by offer; one that is not named has none
    rates: Rates = field(default_factory=Rates)  # how often its calls may be made; as often as one likes
    elsewhere: bool = False  # nodes may be machines that do not see the controller's disk: files of jobs travel there
    warm: Callable[[], Awaitable[None]] | None = None  # before the first start, if there is something to prepare


BuildProvider = Callable[[Settings, Clock, Store], ProviderSetup]


def require_engine(settings: Settings, engine: str) -> None:
    """Refuse any other, for a provider whose agents can talk to this one alone."""
    if settings.engine != engine:
        allowed = "ray where the provider is ray, and only there" if "ray" in (engine, settings.engine) else engine
        raise InvalidValue("engine", settings.engine, allowed)


def wind_down_s(settings: Settings) -> float:
    """Cloud time that a node is paid for after its release, where its agent ends it."""
    return (WIND_DOWN_WALL_S + settings.lease_s / 3) * settings.speedup

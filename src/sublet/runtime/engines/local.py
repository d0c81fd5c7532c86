"""The engine of one machine: agents come to a socket that only this user can open, or to a port on loopback."""

from __future__ import annotations

from sublet.errors import InvalidValue
from sublet.runtime.agent.dialing import address_from
from sublet.runtime.engines.server import LEASE_S, AgentServer

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class LocalEngine(AgentServer):
    """Agents connect to `address`: `unix:/path`, or `tcp:` on loopback."""

    def __init__(self, address: str, *, lease_s: float = LEASE_S, port_field: str = "") -> None:
        _, place = address_from(address)
        if isinstance(place, tuple) and place[0] not in LOOPBACK:
            raise InvalidValue("address", address, "on loopback: tokens travel in the clear")
        super().__init__(address, lease_s=lease_s, port_field=port_field)

"""The engine beyond one machine: agents that stewards have put on nodes of a Ray cluster come to us over its network.

Ray places agents and takes them away with the node; what is said goes over our own lines, in order and at once. New
state directories have certificates for that (tls.py). This engine is for those of before, whose agents know no other. A
line lies on the network that Ray itself uses, and like Ray's it is not encrypted. A peer needs the token of a node,
which the agent gets through Ray.
"""

from __future__ import annotations

from sublet.errors import InvalidValue
from sublet.runtime.agent.dialing import address_from
from sublet.runtime.engines.server import LEASE_S, AgentServer

ANY_INTERFACE = ("0.0.0.0", "::", "*")  # noqa: S104 - to be refused


class RayEngine(AgentServer):
    """Agents connect to `address`, `tcp:host:port` with the host by which the cluster knows this machine."""

    def __init__(self, address: str, *, lease_s: float = LEASE_S, port_field: str = "") -> None:
        _, place = address_from(address)
        if not isinstance(place, tuple) or place[0] in ANY_INTERFACE:
            raise InvalidValue("address", address, "tcp:host:port with one address of this machine")
        super().__init__(address, lease_s=lease_s, port_field=port_field)

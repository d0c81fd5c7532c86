"""Where nodes say that others reach them, and what cannot be true of it."""

from __future__ import annotations

from sublet.runtime.controller.alarms import AlarmKind, Alarms
from sublet.wire.messages import Hello

__all__ = ["Addresses"]

NEXT = "next: name each node's own by --host or SUBLET_HOST"


class Addresses:
    """The address and the machine of every node whose agent has come."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._hosts: dict[str, str] = {}
        self._claims: dict[str, tuple[str, str]] = {}  # node -> (address, machine)

    def claim(self, node_id: str, hello: Hello) -> None:
        """Two machines cannot have one address: workers there would look for each other on their own machine."""
        self.forget(node_id)
        self._hosts[node_id] = hello.host
        if not hello.machine:
            return
        rivals = [
            other for other, (host, machine) in self._claims.items() if host == hello.host and machine != hello.machine
        ]
        if rivals:
            both = f"is at {hello.host}, it says, and so is {rivals[0]} on another machine"
            text = f"{both}: their workers cannot meet; {NEXT}"
            self._alarms.sound(AlarmKind.ADDRESS, text, node_id=node_id)
        self._claims[node_id] = (hello.host, hello.machine)

    def report_trouble(self, node_id: str, why: str) -> None:
        """An agent came only to say that it cannot serve."""
        self._alarms.sound(AlarmKind.ADDRESS, f"cannot serve: {why}", node_id=node_id)

    def host_of(self, node_id: str) -> str:
        """Where others reach it; "" as long as its agent has not said so."""
        return self._hosts.get(node_id, "")

    def forget(self, node_id: str) -> None:
        """It is gone."""
        self._claims.pop(node_id, None)
        self._hosts.pop(node_id, None)

"""Nodes that carry our mark and that the log has never heard of: somebody put an older backup of the store back.

What was rented since the backup still runs and is paid for. It is found by its mark, ended, and told with what it has
cost as far as the provider knows; the bill cannot know it. Its number is not given out again: the token of a node
follows from its name, and a cloud that has seen a token before gives the old node for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublet.domain import events as news
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.providers.protocol import RentedNode

__all__ = ["Strangers", "strangers_among"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strangers:
    """What is listed beyond the last node that this log asked for."""

    nodes: tuple[RentedNode, ...]
    highest: int

    def event(self, now_s: float) -> news.NodesFound:
        """For the kernel."""
        return news.NodesFound(now_s, self.highest)

    def rows(self, kernel: Kernel, now_s: float) -> list[HistoryRow]:
        """For people: what is ended, and what the bill does not know."""
        return [
            HistoryRow(
                kind="Stranger",
                node_id=node.node_id,
                text=f"was rented after this log ends, and is ended: {_cost(node, kernel, now_s)}",
            )
            for node in self.nodes
        ]


def strangers_among(listed: Iterable[RentedNode], kernel: Kernel) -> Strangers | None:
    """Those of ours that cannot be, if the log is all that ever happened; None without any."""
    found = {_number(node.node_id): node for node in listed if not node.elsewhere}
    found = {number: node for number, node in found.items() if number > kernel.supply.numbered}
    return Strangers(nodes=tuple(found.values()), highest=max(found)) if found else None


def _number(node_id: str) -> int:
    """0 = it is not one of our names."""
    digits = node_id.removeprefix("n")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0  # noqa: PLR2004 - more were never rented


def _cost(node: RentedNode, kernel: Kernel, now_s: float) -> str:
    hours = max(0.0, now_s - node.began_s) / 3600.0
    if node.offer_id not in kernel.supply.offers or not node.began_s:
        return "what it has cost is not known here"
    usd = kernel.ledger.price(node.offer_id).usd_per_h * hours
    return f"about USD {usd:.2f} for {hours:.1f} h of {node.offer_id} are not in this bill"

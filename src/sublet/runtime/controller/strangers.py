"""Nodes that carry our mark and that the log has never heard of: somebody put an older backup of the store back.

What was rented since the backup still runs and is paid for. It is found by its mark, ended, and told with what it has
cost until its end, as far as the provider knows. That is in the history and not in the ledger: the ledger is what the
log lets anybody compute again, and the orders and prices that this cost follows from are in a log that is gone. It is
the same with a node that runs on after its bill has ended, because its provider had said that it was gone. The number
of a stranger is not given out again: the token of a node follows from its name, and a cloud that has seen a token
before gives the old node for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublet.domain import events as news
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.providers.protocol import Billed, RentedNode

__all__ = ["Strangers", "row_of_end", "strangers_among"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strangers:
    """What is listed beyond the last node that this log asked for."""

    nodes: tuple[RentedNode, ...]
    highest: int

    def event(self, now_s: float) -> news.NodesFound:
        """For the kernel."""
        return news.NodesFound(now_s, self.highest)

    def rows(self) -> list[HistoryRow]:
        """For people: what is ended. What it cost is told when it has (`row_of_end`)."""
        text = "was rented after this log ends, and is ended"
        return [HistoryRow(kind="Stranger", node_id=node.node_id, text=text) for node in self.nodes]


def strangers_among(listed: Iterable[RentedNode], kernel: Kernel) -> Strangers | None:
    """Those of ours that cannot be, if the log is all that ever happened; None without any."""
    found = {_number(node.node_id): node for node in listed if not node.elsewhere}
    found = {number: node for number, node in found.items() if number > kernel.supply.numbered}
    return Strangers(nodes=tuple(found.values()), highest=max(found)) if found else None


def _number(node_id: str) -> int:
    """0 = it is not one of our names."""
    digits = node_id.removeprefix("n")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0  # noqa: PLR2004 - more were never rented


def row_of_end(kind: str, node: RentedNode, billed: Billed, kernel: Kernel, now_s: float) -> HistoryRow:
    """For people: a node that no open lease is of has ended, and what it cost that the bill does not have."""
    ended = [lease.end_us for lease in kernel.ledger.closed if lease.node_id == node.node_id and not lease.void]
    since_s = (node.began_s or None) if billed.from_s is None else billed.from_s
    if ended and (end_us := ended[-1]) is not None:
        since_s = end_us / 1e6 if since_s is None else max(since_s, end_us / 1e6)
    offer = kernel.supply.offers.get(node.offer_id)
    if billed.nothing:
        text = "has ended, and cost nothing"
    elif offer is None or since_s is None:
        text = "has ended; what it has cost is not known here, and is not in this bill"
    else:
        held_s = max(0.0, (now_s if billed.to_s is None else billed.to_s) - since_s)
        hours = (held_s if ended else max(held_s, offer.minimum_billing_s)) / 3600.0
        usd = kernel.ledger.price(node.offer_id).usd_per_h * hours
        text = f"has ended: about USD {usd:.4f} for {hours:.2f} h of {node.offer_id} are not in this bill"
    return HistoryRow(kind=kind, node_id=node.node_id, text=text)

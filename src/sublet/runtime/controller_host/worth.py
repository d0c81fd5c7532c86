"""From when on an anchor pays: its price by the hour against what is lost when a laptop with a controller goes away.

A controller that is gone renews no lease: its nodes run on for a lease, are paid for, and then end. What is trained in
that time and not saved is lost as well; how much, nobody knows beforehand, and it is left out: the anchor pays sooner.
"""

from __future__ import annotations

from sublet.domain.units import SECONDS_PER_H

__all__ = ["loss_usd", "pays_every_h"]


def loss_usd(usd_per_h: float, lease_s: float) -> float:
    """What nodes of this price cost after their controller has gone, at the least."""
    return usd_per_h * lease_s / SECONDS_PER_H


def pays_every_h(usd_per_h: float, *, lease_s: float, anchor_usd_per_h: float) -> float:
    """Hours between two such losses at which both ways cost the same: with more of them the anchor is cheaper."""
    return loss_usd(usd_per_h, lease_s) / anchor_usd_per_h if anchor_usd_per_h else float("inf")

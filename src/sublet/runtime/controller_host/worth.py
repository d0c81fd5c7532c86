"""Break-even of a controller host: its price by the hour against the losses when a laptop with a controller goes away.

A controller that is gone renews no lease: its nodes run on for a lease, are paid for, and then end. Training in that
time that is not saved is lost as well. Its amount is unknown beforehand, and it is left out: the controller host pays
sooner.
"""

from __future__ import annotations

from sublet.domain.units import SECONDS_PER_H

__all__ = ["loss_usd", "pays_every_h"]


def loss_usd(usd_per_h: float, lease_s: float) -> float:
    """The least cost of nodes of this price after their controller has gone."""
    return usd_per_h * lease_s / SECONDS_PER_H


def pays_every_h(usd_per_h: float, *, lease_s: float, anchor_usd_per_h: float) -> float:
    """Hours between two such losses at which both ways cost the same: with more the controller host is cheaper."""
    return loss_usd(usd_per_h, lease_s) / anchor_usd_per_h if anchor_usd_per_h else float("inf")

"""Nodes that a falling supply takes: the one rule of the simulated and the replayed market."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["choose_lost", "draw_excess"]


def draw_excess(nodes: Sequence[str], supply: int, rng: np.random.Generator) -> list[str]:
    """Those of `nodes` that are too many for `supply`, drawn with equal chances and in their order."""
    excess = len(nodes) - supply
    if excess <= 0:
        return []
    return [nodes[int(i)] for i in sorted(rng.choice(len(nodes), size=excess, replace=False))]


def choose_lost(
    nodes: Sequence[str], lost_s: Mapping[str, float], supply: int, now_s: float, rng: np.random.Generator
) -> list[str]:
    """Nodes that go when supply becomes `supply`: those whose announced end `lost_s` has come, then some of the rest.

    A node of the rest goes if it was rented after the notices went out, or if no notice is given.
    """
    due = [node for node in nodes if node in lost_s and lost_s[node] <= now_s]
    rest = [node for node in nodes if node not in set(due)]
    return due + draw_excess(rest, supply, rng)

"""Which tests begin: those that wait for long would else be the last, with nothing to do beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

__all__ = ["LONG", "dealt"]

T = TypeVar("T")

# Dealt to the workers in turn; each module stays with one, as do the clusters and templates that it starts. None that
# starts controllers or a cluster: where several of these begin at once on two cores, each waits for all the others.
LONG = ("tests/simulation/test_theory.py",)


def dealt(items: Sequence[T], modules: Mapping[T, str], workers: int) -> list[T]:
    """All of them, those of long modules at the head of what `--dist worksteal` gives to each worker at first."""
    long: dict[str, list[T]] = {module: [] for module in LONG}
    rest = [item for item in items if modules[item] not in long]
    for item in items:
        if modules[item] in long:
            long[modules[item]].append(item)
    order: list[T] = []
    for worker in range(workers):
        head = [item for module in LONG[worker::workers] for item in long[module]]
        share = (len(items) - len(order)) // (workers - worker)
        more = max(0, share - len(head))
        order += head + rest[:more]
        rest = rest[more:]
    return order + rest

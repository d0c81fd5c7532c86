"""The command of a worker that has buckets as folders: in a process that fills them, and takes back what is new."""

from __future__ import annotations

import sys
from dataclasses import replace

from sublet.wire.messages import StartWorker
from sublet.wire.travel import Travel

__all__ = ["with_mounts"]

MOUNTED = (sys.executable, "-P", "-m", "sublet.runtime.travel.mounted")


def with_mounts(order: StartWorker, travel: Travel) -> StartWorker:
    """As it is, where it has none."""
    if not travel.kept or not order.argv:
        return order
    pairs = [word for place, uri in travel.kept.items() for word in (uri, place)]
    return replace(order, argv=(*MOUNTED, *pairs, "--", *order.argv))

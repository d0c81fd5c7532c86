"""All objects under a URI, as they were when they were listed: what a training reads, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sublet.errors import BadInput
from sublet.machine.objects import Found
from sublet.train.data.stored.fetching import fetching

__all__ = ["Manifest", "listed"]

GROUPS = 64  # of objects, by their keys: what differs is named with those of its group
NAMED = 3


@dataclass(frozen=True, slots=True)
class Manifest:
    """In order of the keys."""

    uri: str
    objects: tuple[Found, ...]
    digests: tuple[str, ...] = field(init=False, repr=False)  # of each group

    def __post_init__(self) -> None:
        sums = [hashlib.sha256() for _ in range(GROUPS)]
        for found in self.objects:
            sums[_group_of(found.key)].update(f"{found.key}\0{found.size}\0{found.tag}\n".encode())
        object.__setattr__(self, "digests", tuple(each.hexdigest()[:8] for each in sums))

    def __deepcopy__(self, memo: Any) -> Manifest:
        return self  # nothing of it changes, and there is a copy of the dataset for each shard

    def state(self) -> dict[str, Any]:
        """What tells it from others."""
        return {"objects": len(self.objects), "digests": " ".join(self.digests)}

    def require_same(self, state: Mapping[str, Any]) -> None:
        """BadInput if it is not the one of the state."""
        were = str(state["digests"]).split()
        differ = {group for group, (was, now) in enumerate(zip(were, self.digests, strict=True)) if was != now}
        if not differ:
            return
        names = [found.key for found in self.objects if _group_of(found.key) in differ]
        if not names:
            which = "one that was there is gone"
        else:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            which = f"it is among {', '.join(names[:NAMED])}{more}, or gone"
        raise BadInput(
            self.uri,
            f"{len(self.objects)} objects, of which something was replaced, added or taken away since the checkpoint, "
            f"which was of {state['objects']}: {which}",
            hint="put it back as it was, or give a new checkpoint directory",
        )


def listed(uri: str, suffix: str) -> Manifest:
    """Asks once."""
    found = tuple(each for each in fetching(uri).list() if each.size and each.key.endswith(suffix))
    if not found:
        ends = f" that ends with {suffix!r}" if suffix else ""
        raise BadInput(uri, f"no object{ends} with any bytes lies under it", hint="name the prefix of the samples")
    return Manifest(uri, found)


def _group_of(key: str) -> int:
    return hashlib.sha256(key.encode()).digest()[0] % GROUPS

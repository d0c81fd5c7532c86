"""The checkpoints of the SDK as an agent sees them from outside: folders called step-N, each with a manifest.

One that is there was committed by a rename, and does not change: the highest is to be carried.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass

from sublet.runtime.agent.disk import Disk
from sublet.runtime.agent.snapshots import Found

__all__ = ["Step", "Steps", "steps_in"]

MANIFEST = "MANIFEST.json"
IN_STEP = re.compile(r"step-(0|[1-9]\d*)/([^/]+)")
MOST_BYTES = 1 << 22  # of a manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One that was committed; whether it is whole is not known."""

    number: int
    paths: tuple[str, ...]  # below the folder, the manifest last
    generation: int  # of its writer
    done: float  # samples


class Steps:
    """Those of one job on this node, as `snapshots.Finder` has it."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder, self._disk = folder, disk
        self.generation = 0  # of the last that went on from here: what was here then is its own
        self._settled = self._carried = -1
        self._changed = True

    def touch(self) -> None:
        """There may be something new."""
        self._changed = True

    def due_s(self) -> float:
        """At once, if something may be new."""
        return float("-inf") if self._changed else float("inf")

    def find(self, now_s: float, *, urgent: bool) -> Found | None:
        """The newest that is not settled."""
        del now_s, urgent  # it is whole since it is there
        self._changed = False
        for step in steps_in(self.folder, self._disk, above=self._settled)[:1]:
            generation = max(step.generation, self.generation)
            return Found(paths=step.paths, generation=generation, step=step.number, done=step.done)
        return None

    def is_still(self, found: Found) -> bool:
        """Its files were not touched, or the snapshot is spoiled."""
        return bool(found)

    def settle(self, found: Found, *, carried: bool) -> None:
        """It is carried, or will not be."""
        self._settled = max(self._settled, found.step)
        self._carried = max(self._carried, found.step) if carried else self._carried
        self._changed = True

    def came(self, generation: int, step: int) -> None:
        """The newest that the controller has was brought here, for a worker of this generation."""
        self._carried = self._settled = max(self._carried, step)
        self.generation, self._changed = generation, True


def steps_in(folder: str, disk: Disk, *, above: int = -1) -> list[Step]:
    """Those above a step, the highest first; none that could not be loaded."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in disk.below(folder):
        name = path[len(folder) + 1 :]
        if (match := IN_STEP.fullmatch(name)) and int(match[1]) > above and _is_plain(path, disk):
            found[int(match[1])].append(name)
    steps = [_step(folder, number, sorted(found[number]), disk) for number in sorted(found, reverse=True)]
    return [step for step in steps if step is not None]


def _is_plain(path: str, disk: Disk) -> bool:
    """The SDK writes nothing else."""
    try:
        return disk.facts(path, follow=False).is_regular
    except OSError:
        return False


def _step(folder: str, number: int, paths: list[str], disk: Disk) -> Step | None:
    manifest = f"step-{number}/{MANIFEST}"
    try:
        text = disk.piece(f"{folder}/{manifest}", since_bytes=0, most_bytes=MOST_BYTES)
        facts = json.loads(text)["manifest"]
        generation, done = int(facts["generation"]), float(facts["meta"].get("samples_done", number))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    ordered = (*(path for path in paths if path != manifest), manifest)
    return Step(number=number, paths=ordered, generation=generation, done=done)

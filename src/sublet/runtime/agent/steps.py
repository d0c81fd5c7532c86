"""The checkpoints of the SDK as an agent sees them from outside: folders called step-N, each with a manifest."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass

from sublet.runtime.agent.disk import Disk

__all__ = ["Step", "steps_in"]

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


def steps_in(folder: str, disk: Disk, *, above: int = -1) -> list[Step]:
    """Those above a step, the highest first; none that nobody could load."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in disk.below(folder):
        name = path[len(folder) + 1 :]
        if (match := IN_STEP.fullmatch(name)) and int(match[1]) > above:
            found[int(match[1])].append(name)
    steps = [_step(folder, number, sorted(found[number]), disk) for number in sorted(found, reverse=True)]
    return [step for step in steps if step is not None]


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

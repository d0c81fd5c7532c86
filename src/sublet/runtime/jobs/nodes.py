"""On how many GPUs a job runs, and whether its command runs once per GPU or, as SkyPilot has it, once per node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sublet.runtime.jobs.schema import JobFile

__all__ = ["TORCHRUN", "Width", "starts_its_own", "width_of"]

LAUNCHERS: Final = re.compile(
    r"\btorchrun\b|torch\.distributed\.(run|launch)\b|\baccelerate\s+launch\b|\bdeepspeed\b|\bmpirun\b|\bray\s+start\b"
    r"|\bSKYPILOT_[A-Z]"
)
TORCHRUN: Final = re.compile(r"\btorchrun\b|torch\.distributed\.(run|launch)\b")


@dataclass(slots=True)
class Width:
    """How wide a job is: the kinds that will do, from `low` to `high` workers, `per_node` of them in one process."""

    kinds: tuple[str, ...]
    low: int
    high: int
    per_node: int = 0
    notes: list[str] = field(default_factory=list)


def starts_its_own(run: str) -> bool:
    """The text starts processes for the GPUs itself, or asks which node it is on."""
    return LAUNCHERS.search(run) is not None


def width_of(file: JobFile, *, own: bool, foreign: bool) -> Width:
    """By `elastic`, or by nodes and GPUs per node.

    `own`: the command is the worker of one GPU (it has a session, or is torchrun's). `foreign`: the file is one for
    SkyPilot, whose command is for a node also where that has one GPU.
    """
    choices = file.resources.choices()
    kinds = tuple(dict.fromkeys(kind for kind, _ in choices))
    if file.elastic is not None:
        return Width(kinds, *file.elastic.workers)
    counts = [count for _, count in choices if count is not None]
    low, high = (min(low for low, _ in counts), max(high for _, high in counts)) if counts else (1, 1)
    fixed = all(low == high for low, high in counts)
    if own or not fixed or (high == 1 and not foreign):
        return Width(kinds, file.num_nodes * low, file.num_nodes * high)
    gpus, notes = _one_count([count[0] for count in counts]), []
    if low != high:
        kinds = tuple(dict.fromkeys(kind for kind, count in choices if count == (gpus, gpus)))
        some = f"{gpus} GPU{'s' if gpus > 1 else ''} per node, of {' or '.join(kinds)}"
        notes.append(f"resources.accelerators: {some}; the other numbers are left aside")
    return Width(kinds, file.num_nodes * gpus, file.num_nodes * gpus, gpus, notes)


def _one_count(counts: Sequence[int]) -> int:
    """The number that most kinds may have, the smallest of several."""
    often = Counter(counts or [1])
    return min(often, key=lambda count: (-often[count], count))

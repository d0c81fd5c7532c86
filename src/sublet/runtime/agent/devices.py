"""The GPUs of a node: which there are, and which worker has which for as long as it lives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sublet.runtime.agent.nvml import gpu_uuids

__all__ = ["VISIBLE", "Devices", "found_devices", "least_used"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
DEV = Path("/dev")


def found_devices(environment: Mapping[str, str]) -> tuple[str, ...]:
    """By name, as CUDA_VISIBLE_DEVICES takes them; what that variable hides from us is not ours to give."""
    if (own := environment.get(VISIBLE)) is not None:
        names = [name.strip() for name in own.split(",")]
        hidden = next((index for index, name in enumerate(names) if name in ("", "-1")), len(names))  # as CUDA reads it
        return tuple(names[:hidden])
    return gpu_uuids() or tuple(str(number) for number in range(len([*DEV.glob("nvidia[0-9]*")])))


def least_used(names: Sequence[str], used: Mapping[str, int], count: int) -> tuple[str, ...]:
    """`count` of them, those first that the fewest have; all of them where there are fewer."""
    return tuple(sorted(names, key=lambda name: used.get(name, 0))[:count])


class Devices:
    """Gives a GPU to every worker. If there are fewer GPUs than workers, these share."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._given: dict[str, tuple[str, ...]] = {}  # to a worker, or to several that belong together
        self._holders: dict[str, str] = {}  # worker -> the key in `_given`

    def take(self, worker_id: str, *, count: int = 1, together: str = "") -> tuple[str, ...]:
        """The devices that this worker may see; those of one `together` see the same."""
        key = together or worker_id
        if key not in self._given:
            used = Counter(name for names in self._given.values() for name in names)
            self._given[key] = least_used(self._names, used, count)
        self._holders[worker_id] = key
        return self._given[key]

    def of(self, worker_id: str) -> tuple[str, ...]:
        """Those that it has."""
        return self._given.get(self._holders.get(worker_id, ""), ())

    def give_back(self, worker_id: str) -> None:
        """It has ended."""
        key = self._holders.pop(worker_id, None)
        if key is not None and key not in self._holders.values():
            del self._given[key]

"""The GPUs of a node: which there are, what NVIDIA's driver says of them, and which worker has which.

NVML comes with the driver, so nothing has to be installed, and it knows GPUs without a CUDA context. It is opened for
each look and closed again: an agent forks, and nothing of a driver shall be open in its children. If there is no
driver, no GPU, or one that does not tell (a slice of one, say), there is nothing to tell.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NVML = "libnvidia-ml.so.1"
UUID_BYTES = 96
BY_UUID = ("GPU-", "MIG-")  # how such names begin; others are numbers
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEV = Path("/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU, at one moment. Use by other processes is counted too."""

    busy: float  # of the time lately, in which something ran on it: 0 to 1
    memory_bytes: int
    memory_of_bytes: int


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def gpu_uuids() -> tuple[str, ...]:
    """The ids of all GPUs, which mean the same in every process; () where there is no driver."""
    with _driver() as nvml:
        count = ctypes.c_uint(0)
        if nvml is None or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        return tuple(uuid for index in range(count.value) if (uuid := _uuid(nvml, index)))


def gpu_readings(names: Sequence[str]) -> Mapping[str, GpuReading]:
    """By name, as CUDA_VISIBLE_DEVICES has them; without those that do not tell."""
    with _driver() as nvml:
        found = {} if nvml is None else {name: _reading(nvml, name) for name in names}
    return {name: reading for name, reading in found.items() if reading is not None}


@contextlib.contextmanager
def _driver() -> Iterator[ctypes.CDLL | None]:
    """None where there is none that can be asked."""
    nvml: ctypes.CDLL | None = None
    with contextlib.suppress(OSError, AttributeError):
        found = ctypes.CDLL(NVML)
        nvml = None if found.nvmlInit_v2() else found
    try:
        yield nvml
    finally:
        if nvml is not None:
            nvml.nvmlShutdown()


def _uuid(nvml: ctypes.CDLL, index: int) -> str:
    device, text = ctypes.c_void_p(), ctypes.create_string_buffer(UUID_BYTES)
    failed = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))  # another container's, say
    failed = failed or nvml.nvmlDeviceGetUUID(device, text, UUID_BYTES)
    return "" if failed else text.value.decode()


def _reading(nvml: ctypes.CDLL, name: str) -> GpuReading | None:
    device, busy, memory = ctypes.c_void_p(), _Utilization(), _Memory()
    if name.startswith(BY_UUID):
        failed = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device))
    elif name.isdecimal():
        failed = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(device))
    else:
        return None
    failed = failed or nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(busy))
    failed = failed or nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    if failed:
        return None
    return GpuReading(busy=busy.gpu / 100.0, memory_bytes=memory.used, memory_of_bytes=memory.total)


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

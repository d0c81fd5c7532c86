"""Facts of NVIDIA's driver on the GPUs of a machine: their names, how busy each is, how much of its memory is taken.

NVML comes with the driver, so nothing has to be installed, and it knows GPUs without a CUDA context. It is opened for
each look and closed again: an agent forks, and nothing of a driver shall be open in its children. If there is no
driver, no GPU, or one that does not tell (a slice of one, say), there is nothing to tell.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["GpuReading", "gpu_readings", "gpu_uuids"]

NVML = "libnvidia-ml.so.1"
UUID_BYTES = 96
BY_UUID = ("GPU-", "MIG-")  # how such names begin; others are numbers


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

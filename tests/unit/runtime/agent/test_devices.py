"""GPUs that tell how busy they are: the driver asked, or a stand-in where there is none, and what it said passed on."""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import subprocess

import pytest

from sublet.runtime.agent import devices
from sublet.runtime.agent.devices import GpuReading, gpu_readings, gpu_uuids
from sublet.testing.rigs import LocalRig
from sublet.wire import messages as wire
from tests.rigs.one_agent import agent

GIB = 1 << 30
DRIVER = r"""
#include <stdio.h>
#include <string.h>
static int opened = 0;
static int of(void *device) { return (int)(long)device - 1; }
int nvmlInit_v2(void) { opened++; return 0; }
int nvmlShutdown(void) { opened--; return 0; }
int how_often_open(void) { return opened; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return opened ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (!opened || index > 2) return 2;
  *device = (void *)(long)(index + 1);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  if (!opened || strlen(uuid) != 5 || strncmp(uuid, "GPU-", 4)) return 6;
  *device = (void *)(long)(uuid[4] - 'a' + 1);
  return 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
  if (of(device) == 2) return 4;
  return snprintf(text, size, "GPU-%c", 'a' + of(device)) < 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
  if (of(device) == 2) return 3;
  rates[0] = 40 + 20 * of(device);
  rates[1] = 7;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
  memory[0] = 80ull << 30;
  memory[1] = 79ull << 30;
  memory[2] = 1ull << 30;
  return 0;
}
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A library that answers as the driver's does, at the border where ours ends."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: nothing can stand in for the driver")
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    monkeypatch.setattr(devices, "NVML", str(library))
    return ctypes.CDLL(str(library))


def test_the_driver_names_its_gpus_and_tells_of_those_that_can_be_read(driver):
    assert gpu_uuids() == ("GPU-a", "GPU-b")  # the third is another container's
    found = gpu_readings(["GPU-b", "0", "2", "GPU-whose", "fpga", "7"])
    assert found == {
        "GPU-b": GpuReading(busy=0.6, memory_bytes=GIB, memory_of_bytes=80 * GIB),
        "0": GpuReading(busy=0.4, memory_bytes=GIB, memory_of_bytes=80 * GIB),
    }
    assert driver.how_often_open() == 0


def test_without_a_driver_there_is_nothing_to_tell(monkeypatch):
    monkeypatch.setattr(devices, "NVML", "libnobody-has-this.so.1")
    assert gpu_uuids() == ()
    assert gpu_readings(["0"]) == {}


WORKS = """
import torch
x = torch.randn(8192, 8192, device="cuda")
while True:
    x = torch.nn.functional.normalize(x @ x)
    torch.cuda.synchronize()
"""


def test_a_real_gpu_is_seen_to_work():
    """On a machine with an NVIDIA GPU and torch for it: `pytest tests/unit/runtime/agent/test_nvml.py -k nvml`."""
    torch = pytest.importorskip("torch")
    if not gpu_uuids() or not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU with a driver here")
    (name, *_) = gpu_uuids()
    idle = gpu_readings([name])[name]
    assert idle.memory_of_bytes >= torch.cuda.get_device_properties(0).total_memory
    rig = LocalRig()

    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("w", rig.script("works.py", WORKS)))
            while True:
                seen = await ears.next(wire.GpuSeen, worker_id="w")
                ears.heard.clear()
                if seen.busy > 0.5:
                    return seen

    seen = asyncio.run(scene())
    assert seen.memory_bytes > idle.memory_bytes + 2 * 4 * 8192 * 8192
    assert rig.clean_up() == []

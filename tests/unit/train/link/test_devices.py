"""How a group talks, by the devices of its members: NCCL refuses a GPU that two of them share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from sublet.train.link.devices import GLOO, NCCL, agreed_backend, backend_for, device_name  # noqa: E402


@pytest.mark.parametrize(
    ("names", "backend"),
    [
        (["GPU-a", "GPU-b"], NCCL),
        (["GPU-a"], NCCL),
        (["GPU-a", "GPU-a"], GLOO),
        (["GPU-a", "GPU-b", "GPU-a"], GLOO),
        (["GPU-a", ""], GLOO),  # one of them trains on a CPU
        (["", ""], GLOO),
    ],
)
def test_members_that_share_a_gpu_talk_by_gloo(names, backend):
    assert backend_for(names) == backend


@pytest.mark.parametrize(("names", "backend"), [(["x", "y", "z"], NCCL), (["x", "y", "x"], GLOO)])
def test_all_members_decide_alike(names, backend):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clients = [dist.TCPStore("127.0.0.1", store.port, is_master=False) for _ in names]
    with ThreadPoolExecutor(len(names)) as pool:
        found = pool.map(lambda rank: agreed_backend(clients[rank], rank, len(names), names[rank]), range(len(names)))
        assert set(found) == {backend}


def test_a_cpu_has_no_name():
    assert device_name(torch.device("cpu")) == ""

"""How long a checkpoint stops training, beside the bare copy of the same tensors in the same run.

    python -m benchmarks.checkpoint                  400 MB in host memory
    python -m benchmarks.checkpoint --device cuda    weights and AdamW state of a 124M-parameter GPT, to pinned memory

The limit of a copy is measured too: on a GPU the fastest of several copies of one large block to pinned memory, on a
CPU the bare copy of the tensors, one by one, into memory that was touched before. Goal: a save blocks for at most 1.3
times the limit. Steps beside the writing are shown next to undisturbed ones. The last checkpoint is read and compared.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from sublet.train.checkpoint.checkpoints import Checkpoints

GOAL = 1.3  # times the limit
BLOCK_BYTES = 1 << 30
State = dict[str, Any]


def main() -> None:
    """Print all figures for one device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--directory", default=None, help="where to write; a temporary directory otherwise")
    parser.add_argument("--repeats", type=int, default=7)
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    torch.manual_seed(0)
    shapes: list[tuple[int, ...]] = list(gpt_shapes()) if device.type == "cuda" else [(1_000, 1_000)] * 33
    state = trained(shapes, device)
    tensors = list(_tensors(state))
    size = sum(tensor.nbytes for tensor in tensors)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{size / 1e6:,.0f} MB in {len(tensors)} tensors, {where}, medians of {chosen.repeats}")
    with tempfile.TemporaryDirectory(dir=chosen.directory) as name:
        blocked(Path(name), state, tensors, device, chosen.repeats)
        beside(Path(name), state, device)


def gpt_shapes() -> Iterator[tuple[int, ...]]:
    """The parameters of GPT-2 small, as published: 12 layers of width 768, 50,257 tokens, 1,024 positions."""
    width = 768
    yield from [(50_257, width), (1_024, width)]
    for _ in range(12):
        yield from [(width,)] * 4  # two layer norms
        yield from [(3 * width, width), (3 * width,), (width, width), (width,)]
        yield from [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    yield from [(width,)] * 2


def trained(shapes: list[tuple[int, ...]], device: torch.device) -> State:
    """Parameters of these shapes after one step of AdamW."""
    parameters = {f"p{i}": torch.nn.Parameter(torch.randn(shape, device=device)) for i, shape in enumerate(shapes)}
    optimizer = torch.optim.AdamW(parameters.values())
    for parameter in parameters.values():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return {
        "model": {name: parameter.detach() for name, parameter in parameters.items()},
        "opt": optimizer.state_dict(),
    }


def blocked(home: Path, state: State, tensors: list[torch.Tensor], device: torch.device, repeats: int) -> None:
    """How long save() holds up its caller, beside the copy alone; then what happens behind it."""
    size = sum(tensor.nbytes for tensor in tensors)
    onto = [_host_like(tensor) for tensor in tensors]
    bare_s, saves = [], []
    with Checkpoints(home / "checkpoints", writer="benchmark", generation=1) as kept:
        _, reserve_s = _timed(lambda: kept.reserve(state), device)
        for step in range(repeats + 1):  # in turns, so that a busy machine disturbs both alike
            bare_s.append(_timed(lambda: _copy(tensors, onto), device)[1])
            _wait_for(device)
            saves.append(kept.save(step, state, {"step": step}))
            saves[-1].wait()
        loaded, load_s = _timed(kept.newest, device)
    assert loaded is not None
    assert loaded.step == repeats
    for one, other in zip(_tensors(loaded.state), tensors, strict=True):
        assert torch.equal(one, other.cpu())
    copy_s = statistics.median(bare_s[1:])
    limit_s = size / _link_bandwidth(device) if device.type == "cuda" else copy_s
    blocked_s = statistics.median(save.blocked_s for save in saves[1:])
    behind_s = statistics.median(save.seconds - save.blocked_s for save in saves[1:])
    _, plain_s = _timed(lambda: torch.save(state, home / "plain.pt"), device)
    print(f"  limit of the copy         {1e3 * limit_s:8.1f} ms  {size / 1e9 / limit_s:6.1f} GB/s")
    print(f"  bare copy, tensor by tensor {1e3 * copy_s:6.1f} ms  {size / 1e9 / copy_s:6.1f} GB/s")
    print(f"  blocked by save()         {1e3 * blocked_s:8.1f} ms  {size / 1e9 / blocked_s:6.1f} GB/s", end="")
    verdict = "reached" if blocked_s <= GOAL * limit_s else "MISSED"
    print(f"  {blocked_s / limit_s:.2f} x the limit (goal {GOAL}: {verdict}), {blocked_s / copy_s:.2f} x the bare copy")
    least_s, least_copy_s = min(save.blocked_s for save in saves[1:]), min(bare_s[1:])
    print(
        f"  the fastest of each       {1e3 * least_s:8.1f} ms  against {1e3 * least_copy_s:.1f} ms of the bare copy",
        end="",
    )
    print(f", {least_s / least_copy_s:.2f} x")
    print(
        f"  first save                {1e3 * saves[0].blocked_s:8.1f} ms  reserve() before it {1e3 * reserve_s:,.0f} ms"
    )
    print(f"  behind it: digests, fsync, commit {behind_s:5.2f} s  {size / 1e9 / behind_s:6.2f} GB/s")
    print(f"  load, verified            {load_s:8.2f} s   {size / 1e9 / load_s:6.2f} GB/s")
    print(f"  torch.save, which blocks and neither verifies nor syncs {plain_s:.2f} s", flush=True)


def beside(home: Path, state: State, device: torch.device) -> None:
    """Steps of a training loop while a checkpoint is being written, against steps without one."""
    side = 8_192 if device.type == "cuda" else 512
    factor = torch.randn(side, side, device=device)

    def step() -> float:
        return _timed(lambda: factor @ factor, device)[1]

    for _ in range(20):
        step()
    alone_s = [step() for _ in range(200)]
    with Checkpoints(home / "beside", writer="benchmark", generation=1) as kept:
        kept.save(0, state, {}).wait()
        pending = kept.save(1, state, {})
        written_s = []
        while not pending.done:
            written_s.append(step())
    one_ms, other_ms = 1e3 * statistics.median(alone_s), 1e3 * statistics.median(written_s)
    print(f"  a step alone {one_ms:.2f} ms, while one is written {other_ms:.2f} ms ({other_ms / one_ms:.2f} x)")


def _link_bandwidth(device: torch.device) -> float:
    """Bytes per second of the fastest of ten copies of one block to pinned memory."""
    block = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=device)
    host = _host_like(block)
    return BLOCK_BYTES / min(_timed(lambda: host.copy_(block, non_blocking=True), device)[1] for _ in range(10))


def _copy(tensors: list[torch.Tensor], onto: list[torch.Tensor]) -> None:
    for tensor, host in zip(tensors, onto, strict=True):
        host.copy_(tensor, non_blocking=True)


def _host_like(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.fill_(1)  # touched, so that no page is made during the copy


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(work: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    _wait_for(device)
    begun_s = time.perf_counter()
    result = work()
    _wait_for(device)
    return result, time.perf_counter() - begun_s


if __name__ == "__main__":
    main()

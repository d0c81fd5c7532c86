"""One stage of four by `torch.distributed.pipelining` (1F1B), for `benchmarks.gpu_nccl grid`: the model of `gpu_grid`.

The weights of words at both ends are tied: the first rank and the last add up their gradients.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.gpt import Gpt, score, text_of
from benchmarks.gpu_grid import BATCH, HUGE, MICRO, SMALL, STAGES
from sublet.train.link.devices import one_gpu_settings

STEPS, WARM = 8, 2


class Part(nn.Module):
    """A quarter of the blocks, with what comes before the first and behind the last."""

    def __init__(self, whole: Gpt, rank: int, device: str) -> None:
        super().__init__()
        each = len(whole.blocks) // STAGES
        blocks = list(whole.blocks)[rank * each : (rank + 1) * each]
        ends = [whole.first] if rank == 0 else []
        last = [whole.last] if rank == STAGES - 1 else []
        self.stages = nn.Sequential(*ends, *blocks, *last)
        self.device = device

    def forward(self, x: Tensor) -> Tensor:
        """As a script has it: in bfloat16."""
        with torch.autocast(self.device, dtype=torch.bfloat16):
            found: Tensor = self.stages(x)
        return found


def main() -> None:
    """The last rank prints seconds of a step."""
    sizes = SMALL if os.environ.get("SUBLET_BENCH_TINY") else HUGE
    os.environ.update(one_gpu_settings())
    torch.set_num_threads(1)
    rank, device = int(os.environ["RANK"]), torch.device(sizes.device)
    if device.type == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    with device:
        part = Part(Gpt(sizes), rank, device.type)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    optimizer = torch.optim.AdamW(part.parameters(), lr=sizes.rate, fused=device.type == "cuda")
    pipeline = Schedule1F1B(PipelineStage(part, rank, STAGES, device), BATCH // MICRO, loss_fn=_loss)
    inputs, targets = text_of(sizes, BATCH * STEPS).tensors
    took, ends, tied = [], dist.new_group([0, STAGES - 1]), _words_of(part)
    for step in range(STEPS):
        began_s = time.perf_counter()
        chosen = slice(step * BATCH, (step + 1) * BATCH)
        given: list[Any] = [inputs[chosen]] if rank == 0 else []
        pipeline.step(*given, **({"target": targets[chosen]} if rank == STAGES - 1 else {}))
        if tied is not None:
            dist.all_reduce(tied.grad, group=ends)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - began_s)
    print(json.dumps({"step_s": statistics.median(took[WARM:])}))
    sys.stdout.flush()
    os._exit(0)


def _words_of(part: Part) -> nn.Parameter | None:
    """At both ends."""
    return next((each for name, each in part.named_parameters() if "word" in name), None)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast(logits.device.type, dtype=torch.bfloat16):
        return score(logits, (logits, targets))


if __name__ == "__main__":
    main()

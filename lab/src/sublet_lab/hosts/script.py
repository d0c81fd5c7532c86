"""Training of the study: `python script.py sdk|ddp|trainer STEPS PACE_S`, one model on equal batches in three ways.

A step takes PACE_S; `sdk STEPS PACE_S shared`: so long for one worker, and less the more of them share it.

sdk       with a session of Sublet's
ddp       written for torchrun, knows nothing of Sublet: rank 0 saves to a folder, and all begin from there
trainer   as users of trainers write: `checkpoint-N` to a bucket of their own, and the last one at the start
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

SAMPLES, BATCH, LR = 9600, 24, 0.05  # a batch that 1, 2, 3 and 4 workers can share alike
EVERY = 20  # steps between two checkpoints, without the SDK


def main() -> None:
    """As the command line says."""
    when("begun", time.time() - age_s())
    when("imported", time.time())
    way, steps, pace_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    {"sdk": sdk, "ddp": ddp, "trainer": trainer}[way](steps, pace_s)


def sdk(steps: int, pace_s: float) -> None:
    """Two epochs."""
    from sublet import train

    model, optimizer, inputs, targets = made()
    some = steps * BATCH // 2
    data = TensorDataset(inputs[:some], targets[:some])
    with train.session(model, optimizer, data, global_batch=BATCH) as session:
        when("formed", time.time())
        for x, y in session.batches(epochs=2):
            before = session.steps
            session.step(nn.functional.mse_loss(model(x).squeeze(1), y))
            if session.steps > before:  # else the group broke: the step was not applied, and none is told
                shared = session.world if "shared" in sys.argv else 1
                pause(session.steps, pace_s / shared, session.generation)
        if session.rank == 0:
            tell(model, inputs, targets)


def ddp(steps: int, pace_s: float) -> None:
    """The folder is on the host of rank 0."""
    file = Path(os.environ.get("SUBLET_CHECKPOINT_DIR", "checkpoints")) / "last.pt"

    def last() -> Any:
        return torch.load(file) if file.exists() else None

    def save(state: dict[str, Any]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, f"{file}.new")
        Path(f"{file}.new").replace(file)

    distributed(steps, pace_s, last, save)


def trainer(steps: int, pace_s: float) -> None:
    """The bucket is the user's; the credentials are those of the machine."""
    bucket, _, prefix = os.environ["OUTPUT"].removeprefix("s3://").partition("/")

    def s3() -> Any:
        import boto3

        return boto3.client("s3")  # endpoint and region from the environment of the machine

    def last() -> Any:
        listed = s3().list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/checkpoint-").get("Contents", [])
        saved = [int(found[1]) for row in listed if (found := re.search(r"checkpoint-(\d+)$", row["Key"]))]
        if not saved:
            return None
        answer = s3().get_object(Bucket=bucket, Key=f"{prefix}/checkpoint-{max(saved)}")
        return torch.load(io.BytesIO(answer["Body"].read()))

    def save(state: dict[str, Any]) -> None:
        body = io.BytesIO()
        torch.save(state, body)
        s3().put_object(Bucket=bucket, Key=f"{prefix}/checkpoint-{state['step']}", Body=body.getvalue())

    distributed(steps, pace_s, last, save)


def distributed(steps: int, pace_s: float, last: Callable[[], Any], save: Callable[[dict[str, Any]], None]) -> None:
    """DDP over all workers that are there; rank 0 finds and saves."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer, inputs, targets = made()
    found = [last() if rank == 0 else None]
    dist.broadcast_object_list(found, src=0)
    begin = 0
    if found[0] is not None:
        begin = found[0]["step"]
        model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
    print("BEGIN", begin, flush=True)
    trained = DistributedDataParallel(model)
    for step in range(begin, steps):
        picked = torch.randint(SAMPLES, (BATCH,), generator=torch.Generator().manual_seed(step))[rank::world]
        optimizer.zero_grad()
        loss: Any = nn.functional.mse_loss(trained(inputs[picked]).squeeze(1), targets[picked])
        loss.backward()
        optimizer.step()
        pause(step + 1, pace_s, int(os.environ.get("SUBLET_GENERATION", "0")))
        if rank == 0 and (step + 1) % EVERY == 0:
            save({"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if rank == 0:
        tell(model, inputs, targets)
    dist.destroy_process_group()


def made() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    """Model, optimizer, inputs, targets: the same wherever they are made."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    inputs = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    return model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), inputs, torch.sin(inputs.sum(1))


def pause(at: int, seconds: float, generation: int) -> None:
    """As long as a step of a real model takes; says where it is, in which generation, and when it was made."""
    made_s = time.time()  # hosts of a box have one clock
    time.sleep(seconds)
    print("AT", at, generation, f"{made_s:.3f}", flush=True)


def when(what: str, at_s: float) -> None:
    """A mark on the way to the first step."""
    print("WHEN", what, f"{at_s:.3f}", flush=True)


def age_s() -> float:
    """Since this process was begun."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def tell(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """The result: the loss over all the data."""
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
    print("RESULT", json.dumps({"loss": float(loss)}), flush=True)


if __name__ == "__main__":
    main()

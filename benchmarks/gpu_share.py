"""Two workers on one GPU, through the live controller: a job goes from one worker to two and back, and trains on.

    python -m benchmarks.gpu_share           needs CUDA; `--cpu` runs the same without, to see that it works

Every node of the box has a slot, and this machine has fewer GPUs than nodes: the workers share one on purpose, so they
talk by gloo (NCCL refuses). The exit code is 0 if all widths trained without a failure and every worker saw one GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings

HERE = Path(__file__).resolve()
STEPS = 40  # to make at each width
WIDTHS = (1, 2, 1)
PATIENCE_S = 120.0  # for a width to make its steps


def main() -> int:
    """Print what was seen as JSON; 0 if it is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--worker", metavar="DEVICE", help="be one of the job's workers")
    asked = parser.parse_args()
    if asked.worker:
        work(asked.worker)
        return 0
    with tempfile.TemporaryDirectory(prefix="sublet-share-") as folder:
        found = asyncio.run(share(Path(folder), "cpu" if asked.cpu else "cuda"))
    print(json.dumps(found, indent=2))
    return 0 if found["ok"] else 1


def work(device: str) -> None:
    """A worker: trains for ever, and says where whenever its group has changed."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import TensorDataset

    from sublet import train

    torch.manual_seed(0)
    x = torch.randn(4096, 256, generator=torch.Generator().manual_seed(1)).to(device)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    generation = -1
    with train.session(model, optimizer, TensorDataset(x, x.sum(1, keepdim=True)), global_batch=256) as s:
        for inputs, targets in s.batches(epochs=100_000):
            s.step(nn.functional.mse_loss(model(inputs), targets))
            if s.generation != generation:
                generation = s.generation
                backend = dist.get_backend(dist.group.WORLD) if s.world > 1 else "alone"
                facts = {
                    "world": s.world,
                    "gpu": seen,
                    "backend": str(backend),
                    "device": str(next(model.parameters()).device),
                }
                print("member", json.dumps(facts), flush=True)
            time.sleep(0.01)


async def share(folder: Path, device: str) -> dict[str, Any]:
    """What was seen at each width."""
    api = controller_from(Settings(state_dir=str(folder / "state"), most_nodes=2, policy="max-speedup"))
    running = asyncio.create_task(api.run())
    await api.started()
    argv = (sys.executable, str(HERE), "--worker", device)
    root = HERE.parents[1]
    spec = JobSpec(name="share", argv=argv, cwd=str(root), env={"PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"})
    job_id = (await api.submit(spec))["job_id"]
    rows = []
    for width in WIDTHS:
        if rows:
            await api.scale(job_id, low=width, high=width)
        rows.append(await _trained(api, job_id, width))
        if not rows[-1]["trained"]:
            break
    view = await api.job(job_id)
    told = [f"{event['kind']}: {event['text']}" for event in await api.events(job_id)]
    await api.shutdown(end_jobs=True)
    await running
    logs = "".join(path.read_text() for path in (folder / "state" / "jobs" / job_id / "logs").glob("*.log"))
    members = [json.loads(line[7:]) for line in logs.splitlines() if line.startswith("member ")]
    pairs = [member for member in members if member["world"] > 1]
    ok = {
        "every width trained": [row["trained"] for row in rows] == [True] * len(WIDTHS),
        "nothing failed": view["failures_infra"] == view["failures_user"] == 0,
        "two workers talked by gloo": bool(pairs) and {member["backend"] for member in pairs} == {"gloo"},
        "each saw one GPU": device == "cpu" or all(m["gpu"] and "," not in m["gpu"] for m in members),
    }
    facts = {"ok": all(ok.values()), "checks": ok, "widths": rows, "members": members, "error": view["error"]}
    return facts if facts["ok"] else {**facts, "events": told, "log": logs[-4000:]}


async def _trained(api: Any, job_id: str, width: int) -> dict[str, Any]:
    """The job makes STEPS steps at this width."""
    began_s = time.monotonic()
    reached = await _until(api, job_id, lambda view: view["phase"] == "running" and view["workers"] == width)
    formed_s, first, step_s = time.monotonic() - began_s, reached["step"], time.monotonic()
    view = await _until(api, job_id, lambda view: view["step"] >= first + STEPS and view["workers"] == width)
    rate = (view["step"] - first) / (time.monotonic() - step_s)
    trained = view["step"] >= first + STEPS and view["workers"] == width
    return {"width": width, "trained": trained, "moved_s": round(formed_s, 2), "steps_per_s": round(rate, 1)}


async def _until(api: Any, job_id: str, reached: Callable[[Any], bool]) -> Any:
    """Its view, as soon as it is so, it has ended, or we give up."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        view = await api.job(job_id)
        if reached(view) or view["phase"] in ("finished", "failed") or time.monotonic() > end_s:
            return view
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())

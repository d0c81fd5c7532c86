"""A GPT of 1.5 billion parameters as 1 x 4 on one GPU: one run is left alone, and in one a stage is killed.

    python -m benchmarks.gpu_grid               needs CUDA; `--tiny` runs the same on a CPU, to see that it works
    python -m benchmarks.gpu_grid --json FILE   everything that was measured
    python -m benchmarks.gpu_grid --steps 10    fewer than 24: half as long

Four workers share the GPU, so they talk by gloo, through the memory of the machine. Each also keeps the part of the
next one; a fifth has started and waits. When a stage is killed, the fifth gets its part from who keeps it, and the step
under way is made again. What is printed: seconds from the death until all have joined and until the next step is
applied, beside the bytes that moved, and how far the losses are from those of the run that was left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpt import Gpt, Sizes, score, text_of
from sublet import train
from sublet.domain.shape import Grid
from sublet.wire.messages import EXIT_LEFT
from sublet_lab.grid.control import Control

HUGE = Sizes(50_257, 1_024, 1_600, 48, 25, used=512, next=8, rate=1e-4, device="cuda")
SMALL = Sizes(97, 16, 32, 8, 2, used=64, next=4, rate=3e-3, device="cpu")
STAGES, BATCH, MICRO, STEPS, VICTIM = 4, 16, 2, 24, 2
PATIENCE_S = 240.0


def main() -> None:
    """Both runs, and what sets them apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="on a CPU, a model of nothing")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    asked = parser.parse_args()
    killed_after = max(1, asked.steps * 10 // STEPS)
    os.environ["SUBLET_BENCH_TINY"] = "1" if asked.tiny else ""
    alone, killed = run(asked.steps), run(asked.steps, killed_after)
    apart = [abs(killed["losses"][step] / loss - 1.0) for step, loss in alone["losses"].items()]
    found = {
        "device": "cpu" if asked.tiny else "cuda",
        "parameters": alone["parameters"],
        "alone": alone,
        "killed": killed,
        "furthest_apart": max(apart),
        "equal_steps": sum(each == 0.0 for each in apart),
        "steps": len(apart),
    }
    print(
        f"{alone['parameters'] / 1e9:.2f} billion parameters as 1 x {STAGES}, batch {BATCH}, torch {torch.__version__}"
    )
    losses = list(alone["losses"].values())
    print(f"  a step: {alone['step_s']:.2f} s; loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps")
    print(f"  a stage killed after step {killed_after}: all joined {killed['joined_s']:.2f} s after its death,")
    print(f"  the next step applied after {killed['stepped_s']:.2f} s; {killed['moved_bytes'] / 1e9:.2f} GB moved")
    print(f"  losses: {found['equal_steps']} of {len(apart)} equal to the bit, at most {max(apart):.2e} apart")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


def run(steps: int, killed_after: int = 0, *, kept: bool = True) -> dict[str, Any]:
    """One training run; where a stage is killed after so many steps, also what that took.

    `kept`: each worker holds the part of the next one too.
    """
    began_s = time.monotonic()
    with Control(steps, partial(life, steps), limit_s=PATIENCE_S) as control:
        workers = [control.start(f"w{number}") for number in range(STAGES + 1)]
        members, grid = workers[:STAGES], Grid(1, STAGES)
        ring = [((number + 1) % STAGES,) for number in range(STAGES)] if kept else []
        control.order(members, grid, keeps=ring)
        facts: dict[str, Any] = {}
        if killed_after:
            control.until_steps(killed_after)
            os.kill(members[VICTIM].pid, signal.SIGKILL)
            died_s = time.monotonic()
            control.until_death()
            members[VICTIM] = workers[-1]
            control.order(members, grid, keeps=ring, broken=True)
            control.until_joined()
            facts["joined_s"] = control.joined_s[control.generation] - died_s
            control.until_steps(killed_after + 1)
            facts["stepped_s"] = time.monotonic() - died_s
            joined = [each for each in control.joined if each.generation == control.generation]
            facts["moved_bytes"] = sum(each.moved_bytes for each in joined)
        control.wait(lambda: not any(each.alive for each in members))
        facts |= members[0].facts | {"wall_s": time.monotonic() - began_s}
    if len(facts["losses"]) != steps:
        sys.exit(f"{len(facts['losses'])} steps were made, {steps} were to be")
    return facts


def life(steps: int, name: str, connection: socket.socket, facts: int, _kept: object) -> None:
    """A worker, in a child that has not used the GPU before."""
    os.environ.update(SUBLET_CONTROL_FD=str(connection.fileno()), SUBLET_WORKER_ID=name)
    sizes = SMALL if os.environ["SUBLET_BENCH_TINY"] else HUGE
    torch.set_num_threads(1 if sizes is SMALL else 2)
    torch.manual_seed(0)
    with torch.device(sizes.device):
        model = Gpt(sizes)
    parameters = sum(each.numel() for each in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.rate, fused=sizes.device == "cuda")
    dataset = text_of(sizes, BATCH * steps)
    losses, ends_s = dict[int, float](), [time.monotonic()]

    def loss(logits: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        time.sleep(0.02 if sizes is SMALL else 0.0)  # else it is over before anybody can be killed
        return score(logits, pair)

    try:
        with train.session(
            model, optimizer, dataset, global_batch=BATCH, micro_batch=MICRO, epochs=1, loss=loss
        ) as session:
            for batch in session.batches():
                with torch.autocast(sizes.device, dtype=torch.bfloat16):
                    session.step(batch)
                losses[session.steps] = session.loss
                ends_s.append(time.monotonic())
    except SystemExit as error:
        if error.code != EXIT_LEFT:
            raise
    step_s = statistics.median(after_s - before_s for before_s, after_s in pairwise(ends_s))
    os.write(facts, json.dumps({"parameters": parameters, "losses": losses, "step_s": step_s}).encode())


if __name__ == "__main__":
    main()

"""What a session costs on a GPU, how well it knows itself there, and what a change of batch does to its loss.

    python -m benchmarks.gpu                    needs CUDA; `--tiny` runs the same on a CPU, to see that it works
    python -m benchmarks.gpu overhead           a part alone: profile, batches or overhead
    python -m benchmarks.gpu --json FILE        everything that was measured

Workers are processes of their own and come first, while this one has not used the GPU. For the overhead, loops own a
model and an optimizer each and read the same samples; blocks of steps alternate, so that clocks and temperature are
alike. Where Sublet is not installed: PYTHONPATH=src, and scipy for the fit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from benchmarks.gpt import LARGE, TINY, Gpt, loss_of, made, score, text_of
from benchmarks.gpu_batches import FULL, QUICK, compare
from benchmarks.gpu_profile import PROFILED, PROFILED_TINY, profile
from sublet import train
from sublet.train.sessions.stopwatch import Stopwatch

PARTS = ("profile", "batches", "overhead")


def main() -> None:
    """Say what is measured as it is, and write all of it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, a model of nothing")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--samples", type=int, help="to train on, each of the two times that losses are compared")
    parser.add_argument("--blocks", type=int, default=30, help="of the overhead")
    parser.add_argument("--steps", type=int, default=10, help="per block")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"no part {sorted(unknown)}: {', '.join(PARTS)}")
    change = QUICK if asked.tiny else FULL
    change = replace(change, samples=asked.samples or change.samples)
    found: dict[str, Any] = {"torch": torch.__version__, "tiny": asked.tiny}
    for part in PARTS:
        if asked.parts and part not in asked.parts:
            continue
        began_s = time.monotonic()
        found[part] = {
            "profile": lambda: [profile(each, tiny=asked.tiny) for each in (PROFILED_TINY if asked.tiny else PROFILED)],
            "batches": lambda: compare(change, tiny=asked.tiny),
            "overhead": lambda: overhead(tiny=asked.tiny, blocks=asked.blocks, steps=asked.steps),
        }[part]()
        print(f"{part} took {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
        if asked.json:  # after each part: one that fails takes nothing of the others along
            asked.json.write_text(json.dumps(found, indent=1) + "\n")


def overhead(*, tiny: bool, blocks: int, steps: int) -> dict[str, Any]:
    """A step of a plain loop, of a session, of one that does not measure itself, and of one in stages."""
    sizes, batch = (TINY, 4) if tiny else (LARGE, 16)
    dataset = text_of(sizes, batch * 64)
    epochs = (blocks + 2) * steps // 64 + 2
    model, optimizer = made(sizes)
    loops = {"plain": plain_steps(model, optimizer, dataset, batch)}
    for name in ("sublet", "unmeasured"):
        mine, my_optimizer = made(sizes)
        loops[name] = session_steps(mine, my_optimizer, dataset, batch, epochs, measured=name == "sublet")
    loops["grid of one"] = grid_steps(*made(sizes), dataset, batch, epochs)
    times = in_turns(loops, blocks=blocks, steps=steps, device=torch.device(sizes.device))
    medians = {name: statistics.median(each) for name, each in times.items()}
    watch_s = watch_cost_s(torch.device(sizes.device))
    found = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": torch.cuda.get_device_name() if sizes.device == "cuda" else "cpu",
        "step_ms": {name: round(1e3 * median, 4) for name, median in medians.items()},
        "over_plain": _ratios(times["sublet"], times["plain"]),
        "over_unmeasured": _ratios(times["sublet"], times["unmeasured"]),
        "grid_over_session": _ratios(times["grid of one"], times["sublet"]),
        "watch_us": 1e6 * watch_s,
        "watch_share": watch_s / medians["sublet"],
    }
    print(f"a step of {found['parameters'] / 1e6:.0f} million parameters, batch {batch}, {blocks} blocks of {steps}")
    for name, median in medians.items():
        print(f"  {name:<11} {1e3 * median:9.3f} ms")
    for name in ("over_plain", "over_unmeasured"):
        ratios = found[name]
        print(f"  session {name.replace('_', ' ')}: {ratios['median']:.4f} (quartiles {ratios['quartiles']})")
    ratios = found["grid_over_session"]
    print(f"  grid of one over session: {ratios['median']:.4f} (quartiles {ratios['quartiles']})   goal 1.01")
    print(f"  calls of the stopwatch: {1e6 * watch_s:.1f} us, {found['watch_share']:.3%} of a step   goal 0.5 %\n")
    return found


def _ratios(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "median": round(statistics.median(pairs), 5),
        "quartiles": [round(quartile, 5) for quartile in statistics.quantiles(pairs, n=4)],
    }


def plain_steps(model: Gpt, optimizer: torch.optim.Optimizer, dataset: TensorDataset, batch: int) -> Iterator[None]:
    """The loop that anybody would write."""
    inputs, targets = dataset.tensors
    while True:
        order = torch.randperm(len(inputs)).to(inputs.device)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, (inputs[chosen], targets[chosen])).backward()
            optimizer.step()
            yield


def session_steps(
    model: Gpt, optimizer: torch.optim.Optimizer, dataset: TensorDataset, batch: int, epochs: int, *, measured: bool
) -> Iterator[None]:
    """The same, borrowed by a session."""
    with train.session(model, optimizer, dataset, global_batch=batch) as session:
        if not measured:
            session._strategy.steps.watch = Unwatched(torch.device("cpu"))  # noqa: SLF001 - nobody else wants it off
        for pair in session.batches(epochs=epochs):
            session.step(loss_of(model, pair))
            yield


def grid_steps(
    model: Gpt, optimizer: torch.optim.Optimizer, dataset: TensorDataset, batch: int, epochs: int
) -> Iterator[None]:
    """The same by a session in stages, all of which are here."""
    facts: dict[str, Any] = {"global_batch": batch, "micro_batch": batch, "epochs": epochs, "loss": score}
    with train.session(model, optimizer, dataset, **facts) as session:
        for pair in session.batches():
            with torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16):
                session.step(pair)
            yield


class Unwatched(Stopwatch):
    """Looks at nothing."""

    def loads(self) -> None:
        """Nothing."""

    def gives(self) -> None:
        """Nothing."""

    def computed(self, samples: int, *, last: bool) -> None:
        """Nothing."""

    def summed(self) -> None:
        """Nothing."""

    def updated(self, *, full: bool) -> None:
        """Nothing."""

    def take(self) -> None:
        """Nothing."""


def watch_cost_s(device: torch.device, steps: int = 2_000) -> float:
    """Seconds that the calls of a stopwatch take in a step of one micro-batch: the least of several goes."""
    watch, took = Stopwatch(device), []
    for _ in range(5):
        _wait(device)
        began_s = time.perf_counter()
        for _ in range(steps):
            watch.loads()
            watch.gives()
            watch.computed(1, last=True)
            watch.summed()
            watch.updated(full=True)
        took.append((time.perf_counter() - began_s) / steps)
        watch.take()
    return min(took)


def in_turns(
    loops: dict[str, Iterator[None]], *, blocks: int, steps: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds per step, of every block; the first two blocks of each warm up."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(blocks + 2):
        for name, loop in loops.items():
            _wait(device)
            began = time.perf_counter()
            for _ in range(steps):
                next(loop)
            _wait(device)
            if number >= 2:
                times[name].append((time.perf_counter() - began) / steps)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()

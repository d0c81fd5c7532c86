"""How long a GPU waits for pictures: under a plain DataLoader, and under a session that has the same loader.

Random JPEGs are written to a folder, and each sample is decoded, cropped, flipped and normalised by a loader's worker,
as in an image pipeline. A residual network trains on them. Both loops run in turns of some steps, each with a loader of
its own; between the end of a step and the beginning of the next the GPU waits, as its own clock tells (events on its
stream). The first steps of a turn, whose samples were loaded while the other loop trained, are not counted.

    PYTHONPATH=src:. python3 -m benchmarks.gpu_loader [--tiny] [--json FILE]      --tiny: on a CPU, some seconds
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sublet import train

GOAL = 0.01  # of the time, that the GPU may wait more than under a plain loader


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a run."""

    pictures: int
    side: int  # of a picture, in pixels
    crop: int
    batch: int
    channels: int
    blocks: int  # of each of four stages
    turns: int
    steps: int  # of a turn that count
    warm: int  # of a turn that do not
    workers: int


LARGE = Sizes(
    pictures=4096, side=256, crop=224, batch=256, channels=64, blocks=2, turns=8, steps=25, warm=30, workers=12
)
TINY = Sizes(pictures=64, side=40, crop=32, batch=8, channels=8, blocks=1, turns=2, steps=4, warm=3, workers=1)


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Decoded and changed at random by whoever asks."""

    def __init__(self, folder: Path, count: int, crop: int, length: int) -> None:
        self._folder, self._count, self._crop, self._length = folder, count, crop, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = index % self._count
        with Image.open(self._folder / f"{number}.jpg") as picture:
            pixels = torch.from_numpy(np.asarray(picture.convert("RGB")).copy())
        top, left = (int(torch.randint(0, size - self._crop + 1, ())) for size in pixels.shape[:2])
        pixels = pixels[top : top + self._crop, left : left + self._crop].permute(2, 0, 1)
        if torch.rand(()) < 0.5:
            pixels = pixels.flip(2)
        return pixels.float().sub_(127.5).div_(64.0), number % 10


class Residual(nn.Module):
    """Two convolutions beside the way around them."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        self.around = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As in residual networks."""
        y = self.norms[0](self.first(x)).relu()
        found: torch.Tensor = (self.norms[1](self.second(y)) + self.around(x)).relu()
        return found


def network(sizes: Sizes) -> nn.Module:
    """Four stages, each with half the width of the one before and twice its channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, sizes.channels, 7, 2, 3, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = sizes.channels
    for stage in range(4):
        after = sizes.channels * 2**stage
        for _ in range(sizes.blocks):
            layers.append(Residual(before, after))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class Waits:
    """Moments on the clock of the device: each step's beginning and end."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._moments = device, list[tuple[Any, Any]]()

    def begins(self) -> None:
        """The batch is there: what follows computes."""
        self._moments.append((self._now(), None))

    def ends(self) -> None:
        """Updated."""
        self._moments[-1] = (self._moments[-1][0], self._now())

    def share(self, warm: int) -> tuple[float, float]:
        """Of the time between steps, and seconds a step; without the first."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        kept = self._moments[warm - 1 :]
        waited = sum(self._between(kept[at - 1][1], kept[at][0]) for at in range(1, len(kept)))
        total = self._between(kept[0][1], kept[-1][1])
        return waited / total, total / (len(kept) - 1)

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch gives it no type
        event.record()
        return event

    def _between(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1e3 if self._device.type == "cuda" else later - earlier


def loader_of(data: Pictures, sizes: Sizes, device: torch.device) -> DataLoader[Any]:
    """As scripts make it."""
    return DataLoader(
        data,
        batch_size=sizes.batch,
        shuffle=True,
        num_workers=sizes.workers,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        drop_last=True,
    )


def plain_turns(data: Pictures, sizes: Sizes, device: torch.device) -> Iterator[tuple[float, float]]:
    """Of the loop that everybody writes."""
    model, optimizer = _made(sizes, device)
    waits, done = Waits(device), 0
    for pixels, labels in loader_of(data, sizes, device):
        batch = pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        waits.begins()
        optimizer.zero_grad()
        _loss(model, batch, device).backward()  # type: ignore[no-untyped-call]  # torch gives it no type
        optimizer.step()
        waits.ends()
        done += 1
        if done == sizes.warm + sizes.steps:
            yield waits.share(sizes.warm)
            waits, done = Waits(device), 0


def session_turns(data: Pictures, sizes: Sizes, device: torch.device) -> Iterator[tuple[float, float]]:
    """Of the same in a session."""
    model, optimizer = _made(sizes, device)
    waits, done = Waits(device), 0
    with train.session(model, optimizer, loader_of(data, sizes, device), epochs=1, device=device) as s:
        for batch in s:
            waits.begins()
            s.step(_loss(model, batch, device))
            waits.ends()
            done += 1
            if done == sizes.warm + sizes.steps:
                yield waits.share(sizes.warm)
                waits, done = Waits(device), 0


def _made(sizes: Sizes, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = network(sizes).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _loss(model: nn.Module, batch: Any, device: torch.device) -> torch.Tensor:
    pixels, labels = batch
    with torch.autocast(device.type, dtype=torch.bfloat16):
        return nn.functional.cross_entropy(model(pixels), labels)


def write_pictures(folder: Path, sizes: Sizes) -> None:
    """Noise over smooth colours, so that a decoder has the work that a photograph is."""
    rng = np.random.default_rng(0)
    for number in range(sizes.pictures):
        small = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(small).resize((sizes.side, sizes.side), Image.Resampling.BICUBIC), np.int16)
        noisy = np.clip(smooth + rng.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8)
        text = io.BytesIO()
        Image.fromarray(noisy).save(text, "JPEG", quality=90)
        (folder / f"{number}.jpg").write_bytes(text.getvalue())


def main() -> None:
    """Print, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not told.tiny else "cpu")
    given = asdict(TINY if told.tiny else LARGE)
    if told.workers is not None:
        given["workers"] = told.workers
    sizes = Sizes(**given)
    if told.tiny:
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "a CPU"
    print(
        f"{name}, {os.cpu_count()} cores, {sizes.workers} loader workers, batches of {sizes.batch} pictures", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder), sizes)
        length = sizes.batch * (sizes.turns + 2) * (sizes.steps + sizes.warm)
        data = Pictures(Path(folder), sizes.pictures, sizes.crop, length)
        found = measured(data, sizes, device)
    for kind, rows in found.items():
        waits, took = ([row[at] for row in rows] for at in (0, 1))
        wait, step_ms = statistics.median(waits), statistics.median(took) * 1e3
        print(f"  {kind:<8} waits {wait:6.2%} of the time, {step_ms:8.2f} ms a step")
    more = statistics.median(ours[0] - plain[0] for ours, plain in zip(found["session"], found["plain"], strict=True))
    ratio = statistics.median(ours[1] / plain[1] for ours, plain in zip(found["session"], found["plain"], strict=True))
    print(
        f"  the session's waits {more:+.2%} of the time more (at most {GOAL:+.0%}); its step: {ratio:.3f} of the other"
    )
    if told.json:
        told.json.write_text(json.dumps({"device": name, "sizes": given, **found, "more": more, "ratio": ratio}))


def measured(data: Pictures, sizes: Sizes, device: torch.device) -> dict[str, list[tuple[float, float]]]:
    """Share of waiting and seconds a step, turn by turn; the first of each warms up."""
    turns = {"plain": plain_turns(data, sizes, device), "session": session_turns(data, sizes, device)}
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in turns}
    for turn in range(sizes.turns + 1):
        for kind in turns if turn % 2 else reversed(turns):
            row = next(turns[kind])
            if turn:
                found[kind].append(row)
    return found


if __name__ == "__main__":
    main()

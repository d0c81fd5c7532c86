"""Random numbers: torch's are each worker's own, Python's and NumPy's are alike in all workers.

Torch's make the masks and the noise of a worker's samples: they are part of the state, and a newcomer's are seeded by
(seed, step, rank). By Python's and NumPy's a script chooses: all workers seed them by (seed, epoch) before the first
batch of each epoch, and whoever comes amid one takes them over. They stay alike where all draw equally often.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sublet.train.data.samples import mixed
from sublet.wire.rehearsal import other_seed

__all__ = [
    "dice_kept",
    "own_dice",
    "random_state",
    "reseed",
    "reseed_host",
    "restore_choices",
    "restore_dice",
    "restore_random",
    "seed_choices",
]

CHOICES = 1 << 49  # far from any other use of a seed
GPU_BYTES = 16  # of the state of a GPU's generator


def reseed(*numbers: int) -> None:
    """All that users' code may draw from, by these numbers."""
    torch.manual_seed(mixed(*numbers))
    _seed_choices(mixed(*numbers))


def reseed_host(*numbers: int) -> None:
    """As `reseed`, but for what draws on a GPU: torch takes a millisecond for all devices."""
    torch.default_generator.manual_seed(mixed(*numbers))
    _seed_choices(mixed(*numbers))


def seed_choices(seed: int, epoch: int) -> None:
    """Python's and NumPy's, as all workers do when an epoch begins."""
    _seed_choices(mixed(seed + other_seed(), CHOICES, epoch))


def random_state() -> dict[str, Any]:
    """Of all generators of this process."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 - users' code draws from it
    return {
        "own": own_dice(),
        "python": [version, torch.tensor(words), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(cached)],
    }


def restore_random(found: Mapping[str, Any]) -> None:
    """What `random_state` gave."""
    restore_choices(found)
    if "own" in found:
        restore_dice(found["own"])
    else:  # of an earlier version
        torch.set_rng_state(found["torch"].cpu().clone())


def restore_choices(found: Mapping[str, Any]) -> None:
    """Of what `random_state` gave, Python's and NumPy's."""
    version, words, gauss = found["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    keys, position, has_gauss, cached = found["numpy"]
    np.random.set_state(("MT19937", keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002 - as above


def own_dice() -> torch.Tensor:
    """Torch's of this process, as bytes: of the CPU, then of a GPU, before which a number says if there is one."""
    host, gpu = torch.get_rng_state(), torch.zeros(1 + GPU_BYTES, dtype=torch.uint8)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no type
        gpu[0], gpu[1:] = 1, torch.cuda.get_rng_state()
    return torch.cat([host, gpu])


def restore_dice(found: torch.Tensor) -> None:
    """What `own_dice` gave."""
    host, (has_gpu, *gpu) = found[: -1 - GPU_BYTES], found[-1 - GPU_BYTES :].tolist()
    torch.set_rng_state(host.cpu().clone())  # torch 2.13 crashes over a part of a tensor
    if has_gpu and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(gpu, dtype=torch.uint8))


@contextmanager
def dice_kept() -> Iterator[None]:
    """Whatever is drawn within was not drawn."""
    was = random_state()
    try:
        yield
    finally:
        restore_random(was)


def _seed_choices(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global one, because users' code may draw from it

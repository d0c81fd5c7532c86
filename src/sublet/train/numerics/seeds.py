"""Random numbers: torch's RNG is each worker's own, Python's and NumPy's are alike in all workers.

Torch's RNG makes masks and noise of a worker's samples. It is part of the state, and a newcomer's is seeded by (seed,
step, rank). Python's and NumPy's are seeded by (seed, epoch) in all workers before the first batch of each epoch, and a
newcomer takes them over. They stay alike where all workers draw equally often.
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

EPOCHS = 1 << 49  # far from any other use of a seed
GPU_BYTES = 16  # of the state of a GPU's generator


def reseed(*numbers: int) -> None:
    """Seed all generators that the user's code may draw from."""
    torch.manual_seed(mixed(*numbers))
    _seed_shared(mixed(*numbers))


def reseed_host(*numbers: int) -> None:
    """As `reseed`, without those of GPUs: that takes torch a millisecond."""
    seed = mixed(*numbers)
    torch.default_generator.manual_seed(seed)
    _seed_shared(seed)


def next_numbers() -> tuple[int, int, bytes]:
    """One number of each generator that `reseed_host` seeds: equal after equal seeds if nothing was drawn since.

    Of 62 bits or more, none of which a generator rejects: so no two places in its sequence have the same by chance.
    """
    drawn = torch.empty((), dtype=torch.int64).random_(generator=torch.default_generator)
    return int(drawn), random.getrandbits(62), np.random.bytes(8)  # noqa: NPY002 - as in _seed_python_and_numpy


def seed_python_and_numpy(seed: int, epoch: int) -> None:
    """Seed Python's and NumPy's RNG, as all workers do when an epoch begins."""
    _seed_shared(mixed(seed + other_seed(), EPOCHS, epoch))


def random_state() -> dict[str, Any]:
    """The state of all generators of this process."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 - users' code draws from it
    return {
        "own": own_rng(),
        "python": [version, torch.tensor(words), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(cached)],
    }


def restore_random(found: Mapping[str, Any]) -> None:
    """Counterpart of `random_state`."""
    restore_python_and_numpy(found)
    restore_rng(found["own"])


def restore_python_and_numpy(found: Mapping[str, Any]) -> None:
    """Python's and NumPy's part of a `random_state`."""
    version, words, gauss = found["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    keys, position, has_gauss, cached = found["numpy"]
    np.random.set_state(("MT19937", keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002 - as above


def own_rng() -> torch.Tensor:
    """Torch's RNG of this process as bytes: the CPU's, a flag for a GPU, and the GPU's."""
    host, gpu = torch.get_rng_state(), torch.zeros(1 + GPU_BYTES, dtype=torch.uint8)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no type
        gpu[0], gpu[1:] = 1, torch.cuda.get_rng_state()
    return torch.cat([host, gpu])


def restore_rng(found: torch.Tensor) -> None:
    """Counterpart of `own_rng`."""
    host, (has_gpu, *gpu) = found[: -1 - GPU_BYTES], found[-1 - GPU_BYTES :].tolist()
    torch.set_rng_state(host.cpu().clone())  # torch 2.13 crashes over a part of a tensor
    if has_gpu and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(gpu, dtype=torch.uint8))


@contextmanager
def rng_kept() -> Iterator[None]:
    """Random numbers drawn within leave all generators as they were."""
    was = random_state()
    try:
        yield
    finally:
        restore_random(was)


def _seed_shared(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global one, because users' code may draw from it

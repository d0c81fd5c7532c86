"""Memory for the state of a unit: all zero, and on the host in large pages where the system has them.

The first touch of a page is what a newcomer waits for: 45 MB in pages of 4 KiB took 25 to 35 ms of a CPU here before
anything was in them, in those of 2 MiB 13 to 17, and to let go of them took 3 to 6 ms against 0.3.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

__all__ = ["blank"]

LARGE_BYTES = 2 << 20  # a page, and where it begins


def blank(size_bytes: int, device: torch.device) -> torch.Tensor:
    """So many bytes."""
    if device.type != "cpu" or size_bytes < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    room = mmap.mmap(-1, size_bytes + LARGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them: pages as usual
        room.madvise(mmap.MADV_HUGEPAGE)
    found = torch.frombuffer(room, dtype=torch.uint8)
    start = -found.data_ptr() % LARGE_BYTES
    return found[start : start + size_bytes]

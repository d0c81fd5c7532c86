"""Memory that a device has left, before something large is tried."""

from __future__ import annotations

from pathlib import Path

import torch

from sublet.train.footprint import gauge_of

__all__ = ["room_bytes"]


def room_bytes(device: torch.device, proc: Path = Path("/proc/meminfo")) -> float:
    """Of a GPU what could be had, of a host what its kernel believes to be; infinite where nobody says."""
    gauge = gauge_of(device)
    if gauge is not None:
        return float(gauge.free())
    try:
        lines = dict(line.split(":", 1) for line in proc.read_text(encoding="ascii").splitlines())
        return float(lines["MemAvailable"].split()[0]) * 1024.0
    except (OSError, ValueError, KeyError):
        return float("inf")

"""Random numbers: names that are unique, and pauses that differ between processes."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Rng(Protocol):
    """The random numbers of one process."""

    def token(self, nbytes: int) -> str:
        """`nbytes` bytes that cannot be guessed, in hexadecimal digits."""

    def random(self) -> float:
        """In [0, 1), for a choice that must differ between processes: no secret."""


class _MachineRng:
    """Those of this machine. A fork has its own: both ask the operating system."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def token(self, nbytes: int) -> str:
        return secrets.token_hex(nbytes)

    def random(self) -> float:
        return self._random.random()


RNG: Rng = _MachineRng()

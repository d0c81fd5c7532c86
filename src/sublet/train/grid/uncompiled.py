"""Compiled functions run as they are while somebody asks for it.

torch has one stance for the process, and parts may be threads of one: who asks first turns it, who is done last turns
it back.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch

__all__ = ["UNCOMPILED", "Uncompiled"]


class Uncompiled:
    """By how many it is asked for."""

    def __init__(self) -> None:
        self._lock, self._asking = threading.Lock(), 0
        self._stance: Any = None

    def begin(self) -> None:
        """Somebody asks for it."""
        with self._lock:
            self._asking += 1
            # Without dynamo nothing is compiled, and to ask would load it, which takes seconds.
            if self._stance is None and "torch._dynamo" in sys.modules:
                self._stance = torch.compiler.set_stance("force_eager")

    def end(self) -> None:
        """That one is done."""
        with self._lock:
            self._asking -= 1
            if not self._asking and self._stance is not None:
                self._stance.__exit__(None, None, None)
                self._stance = None


UNCOMPILED = Uncompiled()

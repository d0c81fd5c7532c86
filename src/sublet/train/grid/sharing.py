"""State that another process on the same GPU reads where it lies (CUDA IPC): a letter goes in place of all of it.

    letter = sharing.letter(memory)      # of who gives; the memory stays as it is until the taker has said so
    sharing.bring(letter, room)          # of who takes: a copy within the GPU, over when this returns

Not a pickle, as `torch.multiprocessing` has it: what comes from others is read as the few facts that it is. A letter
that cannot be opened (processes that may not see each other's memory) is tried once in the life of a process.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import torch

from sublet.train.link.devices import device_name
from sublet.train.private import as_shared, shared_from

__all__ = ["LETTER_BYTES", "Sharing"]

LETTER_BYTES = 2048  # of a few hundred that it takes
BYTES = ("handle", "counter", "event")  # that JSON knows only as text
FACTS = ("device", "handle", "size", "start", "counter", "counted", "event", "waits")  # as torch has them, in its order


class Sharing:
    """Of one process, which trains on `device`: that of a tensor, so that it has a number."""

    refused: ClassVar[bool] = False  # by this process: what was tried once

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device

    @property
    def name(self) -> str:
        """The same for all who can read each other's memory; "" for whoever can read nobody's."""
        if self._device is None or self._device.type != "cuda" or Sharing.refused:
            return ""
        return f"{device_name(self._device)} {self._device.index}"

    def refuse(self) -> None:
        """Never again by this process."""
        Sharing.refused = True

    def letter(self, memory: torch.Tensor) -> torch.Tensor:
        """Where these bytes lie, as a message of the host; what was asked of the GPU before is done."""
        torch.cuda.current_stream(memory.device).synchronize()
        facts = dict(zip(FACTS, as_shared(memory.untyped_storage()), strict=True))
        text = {name: value.hex() if name in BYTES else value for name, value in facts.items()}
        return as_letter({**text, "offset": memory.storage_offset()})

    def bring(self, letter: torch.Tensor, room: torch.Tensor) -> None:
        """What it tells of, into this memory; RuntimeError if that cannot be read."""
        text = facts_of(letter)
        facts = [bytes.fromhex(text[name]) if name in BYTES else text[name] for name in FACTS]
        storage = shared_from(facts)
        there = torch.empty(0, dtype=torch.uint8, device=room.device)
        there.set_(storage, text["offset"], room.shape, (1,))
        room.copy_(there)
        torch.cuda.current_stream(room.device).synchronize()


def as_letter(facts: dict[str, Any]) -> torch.Tensor:
    """In a message whose length everybody knows."""
    found = torch.zeros(LETTER_BYTES, dtype=torch.uint8)
    text = json.dumps(facts).encode()
    found[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return found


def facts_of(letter: torch.Tensor) -> dict[str, Any]:
    """What it says."""
    found: dict[str, Any] = json.loads(bytes(letter.tolist()).rstrip(b"\0"))
    return found

"""The state of a Lightning Trainer's callbacks (early stopping, the best checkpoints) in a session's state."""

from __future__ import annotations

import io
from typing import Any

import torch

__all__ = ["CallbackStates"]


class CallbackStates:
    """As bytes: a callback may keep tensors under any key."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The states of all callbacks that have one."""
        kept = {callback.state_key: callback.state_dict() for callback in self._trainer.callbacks}
        buffer = io.BytesIO()
        torch.save({key: state for key, state in kept.items() if state}, buffer)
        return {"callbacks": torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)}

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        """Counterpart of `state_dict`."""
        kept = torch.load(io.BytesIO(saved["callbacks"].cpu().numpy().tobytes()), weights_only=True)
        for callback in self._trainer.callbacks:
            if callback.state_key in kept:
                callback.load_state_dict(kept[callback.state_key])

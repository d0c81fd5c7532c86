"""What callbacks of a Lightning Trainer remember (early stopping, the best checkpoints), and whether it stops."""

from __future__ import annotations

import io
from typing import Any

import torch

__all__ = ["Kept"]


class Kept:
    """As bytes: a callback may keep tensors under any key."""

    def __init__(self, trainer: Any, steps: int) -> None:
        self._trainer, self._steps = trainer, steps  # of the whole training
        self.ended_early = False  # what was restored is of a training that a callback ended

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Of all callbacks that have any."""
        kept = {callback.state_key: callback.state_dict() for callback in self._trainer.callbacks}
        buffer = io.BytesIO()
        torch.save({key: state for key, state in kept.items() if state}, buffer)
        return {
            "callbacks": torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8),
            "stops": torch.tensor(self._steps if self._trainer.should_stop else 0),
        }

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        """What `state_dict` gave."""
        kept = torch.load(io.BytesIO(saved["callbacks"].cpu().numpy().tobytes()), weights_only=True)
        for callback in self._trainer.callbacks:
            if callback.state_key in kept:
                callback.load_state_dict(kept[callback.state_key])
        # With other epochs or steps than it had it is told to train on; an earlier version did not say.
        self.ended_early = int(saved.get("stops", 0)) == self._steps
        self._trainer.should_stop = self.ended_early

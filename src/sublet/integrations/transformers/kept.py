"""The state of a Trainer beside weights: counters, history, and state of callbacks."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import ExportableState

FIELDS = (  # of TrainerState; the others follow from the arguments or the rank
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "log_history",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)


class TrainerRecord:
    """Part of a session's state, as `extra_state`; callbacks are changed in place, for they may hold open files."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, str]:
        """As text."""
        trainer = self._trainer
        state: TrainerState = trainer.state
        callbacks = defaultdict(list)
        for callback in self._callbacks():
            callbacks[type(callback).__name__].append(callback.state()["attributes"])
        facts = {
            "state": {name: getattr(state, name) for name in FIELDS},
            "control": trainer.control.state()["args"],
            "callbacks": callbacks,
            "unlogged": trainer.losses(),
        }
        return {"trainer": json.dumps(facts)}

    def load_state_dict(self, kept: dict[str, str]) -> None:
        """Counterpart of `state_dict`."""
        facts, trainer = json.loads(kept["trainer"]), self._trainer
        for name, value in facts["state"].items():
            setattr(trainer.state, name, value)
        for name, value in facts["control"].items():
            setattr(trainer.control, name, value)
        for callback in self._callbacks():
            saved = facts["callbacks"].get(type(callback).__name__)
            for name, value in saved.pop(0).items() if saved else ():
                setattr(callback, name, value)
        trainer.restore_losses(*facts["unlogged"])

    def _callbacks(self) -> list[ExportableState]:
        """Callbacks with a state."""
        found = self._trainer.callback_handler.callbacks
        return [each for each in found if isinstance(each, ExportableState) and not isinstance(each, TrainerControl)]

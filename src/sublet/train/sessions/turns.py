"""Several optimizers in one session: each step has a turn for each, with the gradients of its own parameters.

Most trainings have one. A GAN has two: for the same samples one part of the model is updated first, and then the other,
by a loss that contains the first update. Each turn has its own sum over the group, so a group can break between two
turns. Turns that were applied stay applied (`Progress.turn`), the samples are given again, and losses of applied turns
are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.numerics.gradients import Gradients
from sublet.train.sessions.fitness import check_model, check_optimizer
from sublet.train.state.state import Progress


@dataclass(frozen=True, slots=True)
class Turn:
    """One optimizer and what it updates."""

    name: str  # "" where there is only one
    optimizer: torch.optim.Optimizer
    gradients: Gradients


class Optimizers:
    """Several as one, for what asks all of them alike: their states, and their parameter groups."""

    def __init__(self, named: Mapping[str, torch.optim.Optimizer]) -> None:
        self.named = dict(named)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all optimizers."""
        return [group for optimizer in self.named.values() for group in optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The states, by name."""
        return {name: optimizer.state_dict() for name, optimizer in self.named.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Counterpart of `state_dict`."""
        for name, optimizer in self.named.items():
            optimizer.load_state_dict(state[name])


class Turns:
    """The turns of a step, in the order in which the optimizers were given."""

    def __init__(self, model: torch.nn.Module, optimizer: Any) -> None:
        named = _checked(optimizer if isinstance(optimizer, Mapping) else {"": optimizer})
        if named is optimizer:
            self.all = [Turn(str(name), each, Gradients(_parameters_of(each))) for name, each in named.items()]
            self.together: Any = Optimizers({turn.name: turn.optimizer for turn in self.all})
        else:
            self.all, self.together = [Turn("", optimizer, Gradients(model.parameters()))], optimizer
        self.optimizers = [turn.optimizer for turn in self.all]
        for turn in self.all:
            if not turn.gradients.parameters:
                what = f"optimizer {turn.name!r}" if turn.name else "model"
                kind = type(turn.optimizer if turn.name else model).__name__
                raise InvalidValue(what, kind, "one with parameters that require gradients")
        _check_owned(model, self.all)
        self._called = 0  # of this batch, by the script
        self.several = len(self.all) > 1  # then each loss comes with the name of its optimizer

    def now(self, progress: Progress) -> Turn:
        """The next to be applied."""
        return self.all[progress.turn]

    def is_last(self, progress: Progress) -> bool:
        """Whether the step is over with it."""
        return progress.turn == len(self.all) - 1

    def begin(self) -> None:
        """The script gets a batch."""
        self._called = 0

    def call(self, name: str | None) -> int:
        """The script has the loss of the next turn: its number."""
        number = self._called
        if number >= len(self.all) or (name or "") != (self.all[number].name if self.several else ""):
            if not self.several and name:
                raise InvalidValue("step", f"of {name!r}", "s.step(loss): the session has one optimizer")
            order = ", ".join(f"s.step(..., {turn.name!r})" for turn in self.all)
            given = "no name" if name is None else repr(name)
            raise InvalidValue("step", f"{given}, as number {number + 1} of a batch", f"for every batch {order}")
        self._called += 1
        return number

    @property
    def all_called(self) -> bool:
        """Whether the script is through with its batch."""
        return self._called >= len(self.all)

    def clear_others(self, turn: Turn) -> None:
        """Drop gradients that this turn's loss left in the parameters of the others."""
        for other in self.all:
            if other is not turn:
                other.gradients.clear()


def as_one_module(model: Any) -> torch.nn.Module:
    """The model; several by name as one that has them as its parts."""
    if isinstance(model, Mapping) and model and all(isinstance(each, torch.nn.Module) for each in model.values()):
        model = torch.nn.ModuleDict({str(name): each for name, each in model.items()})
    if isinstance(model, torch.nn.Module):
        check_model(model)
        return model
    raise InvalidValue("model", type(model).__name__, "a torch.nn.Module, or several by name: {'D': netD, 'G': netG}")


def _checked(named: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Optimizers that share no parameter."""
    if not named:
        raise InvalidValue("optimizer", "none", "at least one, by name")
    owners: dict[int, str] = {}
    for name, optimizer in named.items():
        check_optimizer(optimizer)
        for parameter in _parameters_of(optimizer):
            if id(parameter) in owners:
                shape = list(parameter.shape)
                allowed = f"without the parameters of {owners[id(parameter)]!r}: each has its own"
                raise InvalidValue(f"optimizer {name!r}", f"a parameter of shape {shape}", allowed)
            owners[id(parameter)] = str(name)
    return named


def _check_owned(model: torch.nn.Module, turns: Iterable[Turn]) -> None:
    """Refuse parameters that are not the model's: they are not summed, cleared or saved."""
    owned = {id(parameter) for parameter in model.parameters()}
    for turn in turns:
        for parameter in _parameters_of(turn.optimizer):
            if parameter.requires_grad and id(parameter) not in owned:
                allowed = "one of the model's: make it a part of the model, such as model.scale = nn.Parameter(...)"
                raise InvalidValue("optimizer", f"a parameter of shape {list(parameter.shape)} of its own", allowed)


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterable[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]

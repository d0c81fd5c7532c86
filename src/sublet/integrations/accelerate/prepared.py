"""Objects from `prepare` that look like accelerate's, and leave the step to the session.

A loss is kept until `optimizer.step()`: by then the script has said how to clip. So the backward pass, the sum over all
workers, the clipping and the update happen there.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Protocol

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from torch.utils.data import DataLoader

from sublet.errors import InvalidValue
from sublet.train.sessions.loop import Session


class Steps(Protocol):
    """The Accelerator, as these objects need it."""

    def given(self) -> Iterator[Any]:
        """The batches of the epoch under way."""

    def make_step(self) -> None:
        """Step with the pending loss, if there is one."""

    def note_scheduler(self, scheduler: Scheduler) -> None:
        """The script has stepped it."""


class Batches:
    """The training's loader: this worker's micro-batches of the session."""

    def __init__(self, steps: Steps, loader: DataLoader[Any]) -> None:
        self._steps, self.loader = steps, loader

    def __iter__(self) -> Iterator[Any]:
        return self._steps.given()

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class Optimizer(AcceleratedOptimizer):  # type: ignore[misc]  # its types are not read
    """Its step is the session's."""

    def __init__(self, steps: Steps, optimizer: Any, *, device_placement: bool) -> None:
        super().__init__(optimizer, device_placement=device_placement)
        self._steps = steps

    def step(self, closure: Any = None) -> None:
        """Give the pending loss to the session; the last one of a step updates the model."""
        if closure is not None:
            raise InvalidValue("optimizer.step(closure)", "a closure", "left out: accelerator.backward(loss) before it")
        self._steps.make_step()

    def zero_grad(self, set_to_none: bool | None = None) -> None:  # noqa: FBT001 - torch's
        """Gradients are the session's."""


class Scheduler(AcceleratedScheduler):  # type: ignore[misc]  # its types are not read
    """Stepped by the session, only after steps that were applied. The script's own call is checked."""

    def __init__(self, steps: Steps, scheduler: Any, optimizers: Any) -> None:
        super().__init__(scheduler, optimizers)
        self._steps = steps

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Once per step or once per epoch, as the Accelerator was told."""
        if args or kwargs:
            raise InvalidValue("scheduler.step()", args or kwargs, "called without a number: it follows from the step")
        self._steps.note_scheduler(self)


class Remembered:
    """Values that a script keeps: its own before the session exists, and the session's from then on."""

    def __init__(self, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_kept", SimpleNamespace(**values))

    def open(self, session: Session, more: dict[str, Any]) -> None:
        """A saved state comes with the first batch; `more`: kept beside them."""
        object.__setattr__(self, "_kept", session.keep(**vars(self._kept), **more))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_kept"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(self._kept, name):
            raise InvalidValue("kept", name, f"one of {', '.join(sorted(vars(self._kept)))}, which keep() was given")
        setattr(self._kept, name, value)


class Registered:
    """Objects of `register_for_checkpointing`, as part of the session's state."""

    def __init__(self, objects: list[Any]) -> None:
        self._objects = objects

    def state_dict(self) -> dict[str, Any]:
        """By number: their order is that of the script."""
        return {str(number): each.state_dict() for number, each in enumerate(self._objects)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Counterpart of `state_dict`."""
        for number, each in enumerate(self._objects):
            each.load_state_dict(saved[str(number)])


def uneven_step(loader: DataLoader[Any], accumulated: int) -> str:
    """How the last step of an epoch differs from accelerate's, in words; "" if it does not."""
    size, samples = loader.batch_size or 1, len(loader.sampler)  # type: ignore[arg-type]  # of a map-style dataset
    batches = samples // size if loader.drop_last else -(-samples // size)
    rest = samples - (batches - 1) * size if not loader.drop_last else size
    last = batches % accumulated or accumulated  # batches in the last step
    if accumulated == 1 or (last == accumulated and rest == size):
        return ""
    count = (last - 1) * size + rest
    return (
        f"the last step of each epoch has {count} of {size * accumulated} samples, and goes by their mean, at any "
        f"number of workers; accelerate takes 1/{accumulated} of the mean of each batch in it, of which there "
        f"{'is 1' if last == 1 else f'are {last}'}: weights may differ from accelerate's from there on. They do not "
        f"where the number of samples is a multiple of {size * accumulated}"
    )

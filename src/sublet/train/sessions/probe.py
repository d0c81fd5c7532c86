"""Compare the loss of the first micro-batch as a whole with those of its two halves.

The update is that of one process only if the loss is what the session was told: a mean over samples, a sum, or a sum
that is counted. So, before the first step, the script is given its first micro-batch three times more: whole, and each
half. Nothing is trained by them: dropout and batch statistics are off, random numbers and buffers are put back, and
printed lines of the halves are left out. Every worker does so, to stay in step; rank 0 warns. Where the script draws
random numbers, or calls `model.train()` in its loop, the comparison is dropped.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.data.loading import in_eval_mode
from sublet.train.numerics.seeds import random_state, restore_random
from sublet.train.sessions.fitness import may_be_several
from sublet.train.sessions.options import Options
from sublet.wire.messages import is_profiled

EXACT = {torch.float64: 1e-9, torch.float32: 1e-5}  # what rounding may make of a loss, as a part of it
ON_A_GPU, HALF = 1e-3, 1e-2  # where products have fewer digits than their sums
LEAST = 1e-6  # losses that are nothing but rounding
TOKENS = (
    "a mean over tokens, or over what a mask leaves, is none over samples: say reduction='counted', and "
    "s.step(sum_of_losses, counted=how_many). Nor may samples of a batch see each other, as in a contrastive loss"
)


def is_due(options: Options) -> bool:
    """Whether to probe: where there may be several workers, unless `reduction` says enough."""
    doubted = (may_be_several() or options.loss is not None) and options.reduction != "mean"
    return options.probe and (options.strict or doubted) and not is_profiled()


class Probe:
    """The probe of one micro-batch of `count` samples."""

    def __init__(self, model: torch.nn.Module, options: Options, count: int) -> None:
        self._model, self._options, self._count = model, options, count
        self._found: list[tuple[float, float]] = []  # loss, and what it is a sum over
        small = any(each.dtype.itemsize < 4 for each in model.parameters())  # noqa: PLR2004 - bytes of single precision
        self._tolerance = HALF if small else 0.0
        self._is_lost = False  # nothing can be said

    def parts(self, batch: Any) -> Iterator[Any]:
        """The whole and the halves of a batch; `take` is called for each."""
        parts = [part_of(batch, self._count, *each) for each in self.ends]
        self._is_lost = self._count == 1
        if any(part is None for part in parts):  # collated in a way of its own
            self._is_lost = True
            return
        with self.looking():
            yield parts[0]
            for part in parts[1:]:
                with _silent():
                    yield part

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """Samples of each part, from and up to."""
        half = self._count // 2
        return ((0, self._count), (0, half), (half, self._count)) if half else ((0, self._count),) * 3

    def part(self, batch: Any, low: int, high: int) -> Any:
        """A part of a batch; all of it where it cannot be divided, and then the comparison is dropped."""
        found = part_of(batch, self._count, low, high)
        self._is_lost |= found is None or self._count == 1
        return batch if found is None else found

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Nothing of what is computed within counts."""
        buffers = [(each, each.clone()) for each in self._model.buffers()]
        self._rng = random_state()
        with contextlib.ExitStack() as stack:
            stack.callback(restore_random, self._rng)
            stack.callback(lambda: [each.copy_(was) for each, was in buffers])
            stack.enter_context(in_eval_mode(self._model))
            stack.callback(self._model.register_forward_pre_hook(self.look).remove)
            if "torch._dynamo" in sys.modules:  # nothing is compiled for this
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield

    def take(self, loss: torch.Tensor, counted: Any) -> None:
        """The loss of the part that was given last."""
        where = loss.device.type
        self._tolerance = max(self._tolerance, EXACT.get(loss.dtype, HALF), ON_A_GPU * (where != "cpu"))
        self._found.append((float(loss.detach()), math.nan if counted is None else float(counted)))
        trains = any(module.training for module in self._model.modules())
        self._is_lost |= trains or not _alike(random_state(), self._rng)
        if where != "cpu" and loss.requires_grad:  # a backward frees what the script may hold until the next part
            first = next(each for each in self._model.parameters() if each.requires_grad)
            with contextlib.suppress(RuntimeError):
                torch.autograd.grad(loss, first, allow_unused=True)

    def give_up(self) -> None:
        """It does not fit into memory."""
        self._is_lost = True

    def conclude(self, *, speaks: bool) -> None:
        """Warn of a difference; InvalidValue if the session is strict."""
        if self._is_lost or len(self._found) < 3 or not math.isfinite(sum(loss for loss, _ in self._found)):  # noqa: PLR2004 - all of them
            return
        why = self._difference()
        if why and self._options.strict:
            raise InvalidValue("loss", why[0], why[1])
        if why and speaks:
            print(f"sublet: the loss {why[0]}; it should be {why[1]}", file=sys.stderr)  # noqa: T201 - to the user, in the user's process

    def _difference(self) -> tuple[str, str] | None:
        (whole, count), (first, of_first), (second, of_second) = self._found
        low = self._count // 2
        mean = (first * low + second * (self._count - low)) / self._count
        told = f"is {whole:.7g} over {self._count} samples, and {first:.7g} and {second:.7g} over the halves of them"
        if self._options.counts:
            if self._near(whole, first + second) and self._near(count, of_first + of_second):
                return None
            return told, "a sum, with how much it is a sum over: both add up (reduction='counted')"
        if self._options.sums:
            if self._near(whole, first + second):
                return None
            told_mean = "; it looks like a mean: leave reduction out" if self._near(whole, mean) else ""
            return told, f"a sum over samples, as reduction='sum' says{told_mean}"
        if self._near(whole, mean):
            return None
        looks = "it looks like a sum: say reduction='sum'" if self._near(whole, first + second) else TOKENS
        hint = "If it is meant as it is, say reduction='mean'"
        return told, f"a mean over samples, or what is trained depends on the number of workers; {looks}. {hint}"

    def _near(self, one: float, other: float) -> bool:
        return abs(one - other) <= self._tolerance * max(abs(one), abs(other)) + LEAST

    def look(self, *_: Any) -> None:
        """Within the script's forward: whether it is in half precision."""
        if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
            self._tolerance = max(self._tolerance, HALF)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Lines that the script prints are left out, unless it ends here."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    except BaseException:  # the generator is closed: the script has left its loop
        print(printed.getvalue(), end="")  # noqa: T201 - the user's own words
        raise


def part_of(batch: Any, count: int, low: int, high: int) -> Any:
    """Some of the samples of a collated micro-batch, copied; None if it does not have them one after the other."""
    if isinstance(batch, torch.Tensor):
        return batch[low:high].clone() if batch.dim() and len(batch) == count else None
    if isinstance(batch, MutableMapping):
        found: Any = copy.copy(batch)
        found.update({name: part_of(value, count, low, high) for name, value in batch.items()})
        parts: Sequence[Any] = list(found.values())
    elif isinstance(batch, tuple | list) and any(isinstance(each, torch.Tensor | MutableMapping) for each in batch):
        parts = [part_of(each, count, low, high) for each in batch]
        found = type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    else:  # text of each sample, say
        return batch[low:high] if isinstance(batch, tuple | list) and len(batch) == count else None
    return None if any(part is None for part in parts) else found


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return all(_alike(value, other.get(name)) for name, value in one.items())
    return all(map(_alike, one, other)) if isinstance(one, list) else bool(one == other)

"""Whether a cut model is trained as a whole one: one micro-batch through both, before anything is trained.

    Proof(cut, atoms, load, loss_of).prove(dice)      # InvalidValue, with what differs and the way out

The user's own function runs once through the whole model, and once cut before every block, part after part in this one
process: each part gets what the one before has made, as it would be sent, the dice of a pipeline, and its gradient from
behind. Loss and gradients of all parameters are then equal to the bit, but where parts share a parameter and where
kernels are not repeatable: there within rounding. Weights are a little off meanwhile, as they will be after a step:
where training begins, a term may be nothing. What else differs would be trained wrongly: a term over all parameters,
something kept from one block for a later one, and whatever nobody has thought of. Nothing of it is left.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from sublet.errors import InvalidValue
from sublet.train.grid.absent import plainly
from sublet.train.grid.atoms import Atom
from sublet.train.grid.borders import carried
from sublet.train.grid.calls import around_calls
from sublet.train.grid.compared import Comparison, Whole, check_alike, dense, differs, eps_of, fingerprint
from sublet.train.grid.cutting import Cut, holders
from sublet.train.grid.dice import Dice
from sublet.train.grid.ghosts import Called
from sublet.train.grid.probing import check_flow
from sublet.train.grid.seat import parts_of
from sublet.train.grid.untouched import untouched
from sublet.train.state import random_state, restore_random

__all__ = ["Proof", "Short"]

ROOM = 3  # times the gradients have to be free: those in one piece, a part's beside activations, weights as they were
SHIFT = 1 / 64  # of each weight, and of 1
DRAWS = 16  # throws of the dice for which all blocks have to run


class Short(Exception):
    """There is no room for the whole model, its gradients and a micro-batch."""


class Proof:
    """Of one model, which is whole. `load` gives an atom's batch, `loss_of` runs the user's function on one.

    The first of the `atoms` that fits is taken, if there is `room`, in bytes, for any.
    """

    def __init__(
        self,
        cut: Cut,
        atoms: Sequence[Atom],
        load: Callable[[Atom], Any],
        loss_of: Callable[[Any, Atom], torch.Tensor],
        room: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._cut, self._atoms, self._load, self._loss_of, self._room = cut, atoms, load, loss_of, room
        self._modules = list(cut.model.modules())
        self._trained = {name: each for name, each in cut.model.named_parameters() if each.requires_grad}
        self._dice, self._atom = Dice(0), atoms[0]
        self._batch: Any = None
        self._random: Any = None  # once the batch is loaded

    def prove(self, dice: Dice) -> None:
        """InvalidValue if it differs; Short if none of the atoms fits."""
        self._dice = dice
        gradients = sum(each.numel() * each.element_size() for each in self._trained.values())
        if self._room() < ROOM * gradients:
            raise Short
        with untouched(self._modules), self._without_gradients():
            for atom in self._atoms:
                self._atom = atom
                try:
                    self._take_batch()
                    self._compare()
                except torch.OutOfMemoryError:
                    self._clear()
                    torch.cuda.empty_cache()
                else:
                    return
                finally:
                    self._cut.restore()
                    self._cut.hold(None)
                    self._batch = None
        raise Short

    def look(self) -> None:
        """Where there is no room: at what goes from block to block, without numbers. InvalidValue."""
        self._atom = self._atoms[0]
        with untouched(self._modules):
            self._take_batch()
            check_flow(self._cut, self._call)

    def _take_batch(self) -> None:
        self._dice.begin(0, self._atom)
        self._batch, self._random = self._load(self._atom), random_state()
        self._dice.begin(0, self._atom)
        check_alike(self._batch, self._load(self._atom))

    def _compare(self) -> None:
        with self._moved():
            whole = self._in_one_piece()
            if whole.loss.isfinite().all():
                return self._compare_with(whole)
        return self._compare_with(self._in_one_piece())

    def _compare_with(self, whole: Whole) -> None:
        found = Comparison(whole)
        self._check_all_run()
        try:
            self._in_parts(found)
            self._cut.restore()
            if found.grey:
                found.check_repeats(self._in_one_piece())
        except InvalidValue:
            self._cut.restore()
            self._clear()
            found.check_whole(self._in_one_piece())
            if not found.told:
                check_flow(self._cut, self._call, between=found.between)  # it may know better words
            raise

    # ------------------------------------------------------------------------------------------- runs

    def _in_one_piece(self) -> Whole:
        """What goes from block to block lies as it does when it has been sent: other kernels would round otherwise."""
        called, came, eps = list[int](), dict[int, Any](), [0.0]
        places, times = self._places(), Counter[int]()

        def entered(module: nn.Module, args: tuple[Any, ...], facts: dict[str, Any]) -> Any:
            at, times[id(module)] = times[id(module)], times[id(module)] + 1
            numbers = places[id(module)]
            called.append(numbers[at % len(numbers)])
            args, facts, first = _with_first(module, args, facts)
            if first is not None:
                came.setdefault(called[-1], fingerprint(first))
                eps[0] = max(eps[0], eps_of(first))
            return args, facts

        blocks = {id(block): block for block in self._cut.blocks}.values()
        watched = [around_calls(block, entered, None) for block in blocks]
        try:
            with untouched(self._modules):
                loss = self._call()
                _check_order(called, len(self._cut.blocks))
                torch.autograd.backward(loss)
        finally:
            for undo in reversed(watched):
                undo()
        gradients = {name: dense(each.grad) for name, each in self._trained.items() if each.grad is not None}
        self._clear()
        return Whole(loss.detach(), gradients, came, eps[0])

    def _in_parts(self, found: Comparison) -> None:
        """Forward through all parts and back; each gradient is compared as soon as all who have it are done."""
        cut, parts = self._cut, parts_of(len(self._cut.blocks), len(self._cut.blocks))
        held = {name: holders(unit, parts) for unit in cut.units for name in unit.names}
        passed: list[tuple[torch.Tensor | None, torch.Tensor]] = []
        came: torch.Tensor | None = None
        for number, part in enumerate(parts):
            cut.become(part)
            with untouched(cut.real()), _said_of(number, found):
                out = cut.run(self._call, came).value
            passed.append((came, out))
            if not part.last:
                came = out.detach().clone(memory_format=torch.contiguous_format)
                found.sent(number + 1, came)
                came.requires_grad_(out.requires_grad)
        found.judge_loss(passed[-1][1].detach())
        gradient: torch.Tensor | None = None
        for number, part in reversed([*enumerate(parts)]):
            came, out = passed.pop()
            cut.become(part)
            cut.hold(came)
            self._dice.resume(0, self._atom)
            with untouched(cut.real()), _said_of(number, found):
                if out.requires_grad and (part.last or gradient is not None):
                    torch.autograd.backward(out, gradient)
            gradient = None if came is None else came.grad
            with plainly():
                self._judge(found, held, number)

    def _judge(self, found: Comparison, held: Mapping[str, Sequence[int]], part: int) -> None:
        for name, each in self._trained.items():
            if each.grad is not None and part in held[name]:  # by others it is thrown away
                found.add(name, dense(each.grad))
            each.grad = None
            if part == min(held[name]):
                found.judge(name, each)

    def _check_all_run(self) -> None:
        """Whatever is drawn: chance may leave blocks out in a later step alone."""
        with untouched(self._modules):
            for step in range(DRAWS):
                try:
                    called = self._called_at(step)
                except InvalidValue:
                    raise
                except Exception:  # noqa: BLE001 - the user's code, where there are only zeros: nobody can tell
                    return
                _check_order(called, len(self._cut.blocks))

    def _called_at(self, step: int) -> list[int]:
        """Blocks, by their numbers, in a forward in which nothing is computed."""
        called: list[int] = []
        with (
            suppress(_Enough),
            torch.no_grad(),
            self._cut.replaced(
                lambda _, each: self._cut.ghost(each),
                lambda number, each: Called(each, partial(self._pass, called, number, each)),
            ),
        ):
            self._dice.begin(step, self._atom)
            self._loss_of(copy.deepcopy(self._batch), self._atom)
        return called

    def _pass(self, called: list[int], number: int, block: nn.Module, *args: Any, **facts: Any) -> Any:
        called.append(number)
        if number == len(self._cut.blocks) - 1:
            raise _Enough
        return self._cut.ghost(block)(*args, **facts)

    def _call(self) -> torch.Tensor:
        """The user's function, with dice and batch as they are at every part."""
        self._dice.begin(0, self._atom)
        restore_random(self._random)
        return self._loss_of(copy.deepcopy(self._batch), self._atom)

    def _places(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, block in enumerate(self._cut.blocks):
            found.setdefault(id(block), []).append(number)
        return found

    @contextmanager
    def _moved(self) -> Iterator[None]:
        """All weights a little off: a term may be nothing where training begins (a gate that is shut, a distance)."""
        kept = [(each, each.detach().clone()) for each in self._trained.values()]
        try:
            with torch.no_grad():
                for each, _ in kept:
                    each.mul_(1 + SHIFT).add_(SHIFT)
            yield
        finally:
            with torch.no_grad():
                for each, was in kept:
                    each.copy_(was)

    @contextmanager
    def _without_gradients(self) -> Iterator[None]:
        kept = [(each, each.grad) for each in self._trained.values()]
        self._clear()
        try:
            yield
        finally:
            for each, gradient in kept:
                each.grad = gradient

    def _clear(self) -> None:
        for each in self._trained.values():
            each.grad = None


class _Enough(BaseException):
    """Ends a forward that has come to its last block."""


@contextmanager
def _said_of(block: int, found: Comparison) -> Iterator[None]:
    """An error of the user's code that it has in parts alone."""
    try:
        yield
    except InvalidValue:
        found.told = True
        raise
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise differs(f"a forward that fails in the part of block {block}, {type(error).__name__}: {error}") from error


def _check_order(called: list[int], blocks: int) -> None:
    if called == list(range(blocks)):
        return
    missing = sorted({*range(blocks)} - {*called})
    raise InvalidValue(
        "parts",
        f"block {missing[0]} that is left out" if missing else f"blocks that run in the order {called}",
        "of blocks that all run once in each forward, in the order of their list: what decides on that (LayerDrop, an "
        "early exit) belongs into the block, which then returns what it got",
    )


def _with_first(
    block: nn.Module, args: tuple[Any, ...], facts: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], torch.Tensor | None]:
    """What a block takes first lies row by row, as in the parts that it is compared with; and so does its gradient."""
    name = carried(block, args, facts)
    x = args[0] if args else facts.get(name or "")
    if not isinstance(x, torch.Tensor):
        return args, facts, None
    x = x.contiguous()
    if x.requires_grad:
        x.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]  # torch gives it no type
    return ((x, *args[1:]), facts, x) if args else (args, {**facts, name: x}, x)  # type: ignore[dict-item]  # it is one

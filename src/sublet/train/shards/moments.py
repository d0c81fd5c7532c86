"""The state of this worker's optimizer: one range of it, or all.

The optimizer is the user's own. Where the state is cut, its groups have *slices* instead of parameters: views of the
weights, with the same part of the gradient, so its step updates the range alone. Schedulers, and code that reads
learning rates, see the same groups as ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.numerics.elementwise import StateSpec, check_elementwise, kept_by
from sublet.train.shards.ranges import Flat, ParameterSlice, Parcel, Span, within

Held = tuple[ParameterSlice, Mapping[str, Any]]  # what the optimizer keeps for a piece; nothing before its first step
CPU = torch.device("cpu")
MOST_OF = 1.02  # memory beside moments that are kept in it: the padding between them, and counters


class Moments:
    """The state of one optimizer, over parameters whose gradients are summed (`trained`)."""

    def __init__(self, optimizer: torch.optim.Optimizer, trained: Iterable[torch.nn.Parameter]) -> None:
        check_elementwise(optimizer)
        self.optimizer = optimizer
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        summed = {id(each) for each in trained}
        cut = [(n, each) for n, group in enumerate(self._groups) for each in group if each.requires_grad]
        for _, each in cut:
            if id(each) not in summed:
                shown = f"one with a parameter of shape {tuple(each.shape)} that the model does not have"
                raise InvalidValue("optimizer", shown, "one over the model's own parameters; or shards: off")
        self.flat = Flat([each for _, each in cut])
        self._group_of = [number for number, _ in cut]
        kinds: dict[Any, StateSpec] = {}
        self._kept = []
        for number, each in cut:
            kind = (number, each.dtype, each.device)
            if kind not in kinds:
                kinds[kind] = kept_by(optimizer, number, each)
            self._kept.append(kinds[kind])
        self._slices: list[tuple[ParameterSlice, torch.nn.Parameter]] | None = (
            None  # None = the optimizer has whole parameters
        )
        self._span: Span | None = (0, self.flat.size)  # that the optimizer has
        self._beside: list[Held] = []  # that the optimizer does not use: a checkpoint's, or of a meeting that broke

    @property
    def device(self) -> torch.device:
        """That of the first parameter."""
        return self.flat.parameters[0].device

    @property
    def whole_bytes(self) -> int:
        """The size of all moments, once they are there."""
        return sum(
            each.numel() * sum(dtype.itemsize for _, dtype in kept.moments)
            for each, kept in zip(self.flat.parameters, self._kept, strict=True)
        )

    @property
    def is_stated(self) -> bool:
        """Whether there is any state: not before the first step, and never for SGD without momentum."""
        keeps = any(each.moments or each.counters for each in self._kept)
        return keeps and any(state for _, state in self.held())

    def held(self) -> list[Held]:
        """All pieces that are here."""
        state = self.optimizer.state
        if self._span is None:
            return list(self._beside)
        if self._slices is not None:
            return [(piece, state.get(each, {})) for piece, each in self._slices] + self._beside
        whole = [
            (ParameterSlice(n, 0, each.numel()), state.get(each, {})) for n, each in enumerate(self.flat.parameters)
        ]
        return [(piece, _flattened(found)) for piece, found in whole] + self._beside

    def spans(self) -> list[Span]:
        """The spans of these pieces, merged."""
        found: list[Span] = []
        for low, high in sorted(self.flat.span(piece) for piece, _ in self.held()):
            if found and low <= found[-1][1]:
                found[-1] = (found[-1][0], max(high, found[-1][1]))
            elif low < high:
                found.append((low, high))
        return found

    # ------------------------------------------------------------------------------------------ messages

    def parcel(self, span: Span) -> Parcel:
        """The layout of a span's state in a message: moments, then a flag and counters."""
        kinds: list[tuple[torch.dtype, int]] = []
        for piece in self.flat.pieces(*span):
            kept = self._kept[piece.parameter]
            kinds += [(dtype, piece.size) for _, dtype in kept.moments]
            kinds.append((torch.float64, 1 + len(kept.counters)))
        return Parcel(kinds)

    def packed(self, span: Span, held: Sequence[Held]) -> torch.Tensor:
        """The message."""
        parcel = self.parcel(span)
        memory = torch.empty(parcel.size_bytes, dtype=torch.uint8, device=self.device)
        views = iter(parcel.seen_in(memory))
        for piece, state in self._assembled(self.flat.pieces(*span), held, reuse=True):
            kept = self._kept[piece.parameter]
            for name, _ in kept.moments:
                next(views).copy_(state[name]) if state else next(views).zero_()
            numbers = [float(bool(state)), *(float(state.get(name, 0.0)) for name, _, _ in kept.counters)]
            next(views).copy_(torch.tensor(numbers, dtype=torch.float64))
        return memory

    def opened(self, span: Span, memory: torch.Tensor) -> list[Held]:
        """The pieces of a message."""
        found: list[Held] = []
        views = iter(self.parcel(span).seen_in(memory))
        for piece in self.flat.pieces(*span):
            kept = self._kept[piece.parameter]
            moments = {name: next(views) for name, _ in kept.moments}
            present, *numbers = next(views).tolist()
            counters = {
                name: torch.tensor(number, dtype=dtype, device=device)
                for (name, dtype, device), number in zip(kept.counters, numbers, strict=True)
            }
            found.append((piece, moments | counters if present else {}))
        return found

    # ------------------------------------------------------------------------------------------ the optimizer

    def hold(self, span: Span, came: Sequence[Held]) -> None:
        """The optimizer takes this span, of the pieces here and those that came; others are dropped."""
        if span == self._span and not self._beside and not came:
            return
        found = _settled(self._assembled(self.flat.pieces(*span), [*self.held(), *came], reuse=True))
        self._span, whole = span, span == (0, self.flat.size)
        keys = [
            self.flat.parameters[piece.parameter] if whole else torch.nn.Parameter(self.flat.weights(piece))
            for piece, _ in found
        ]
        self.optimizer.state.clear()
        self._fill(zip(keys, found, strict=True))
        self._beside = []
        self._slices = None if whole else [(piece, key) for (piece, _), key in zip(found, keys, strict=True)]
        for number, group in enumerate(self.optimizer.param_groups):
            group["params"] = (
                list(self._groups[number])
                if self._slices is None
                else [key for piece, key in self._slices if self._group_of[piece.parameter] == number]
            )

    def see_gradients(self) -> None:
        """Slices get their part of the gradients, which stay in place; none where there is none."""
        for piece, each in self._slices or ():
            gradient = self.flat.parameters[piece.parameter].grad
            each.grad = None if gradient is None else gradient.view(-1)[piece.low : piece.high]

    def keep_beside(self, held: Sequence[Held]) -> None:
        """Keep more than the optimizer uses, until it `hold`s a span."""
        self._beside = [*self._beside, *held]

    def let_go(self) -> None:
        """Drop pieces that the optimizer does not use."""
        self._beside = []

    def forget(self) -> None:
        """Drop all of it. The optimizer has whole parameters without a state."""
        self.optimizer.state.clear()
        self._span, self._slices, self._beside = None, None, []
        for group, parameters in zip(self.optimizer.param_groups, self._groups, strict=True):
            group["params"] = list(parameters)

    def groups(self) -> dict[str, Any]:
        """The settings of the optimizer, as over whole parameters; without a state."""
        with self._as_whole([]):
            return {"param_groups": self.optimizer.state_dict()["param_groups"]}

    def state_dict(self) -> dict[str, Any]:
        """As of the optimizer over whole parameters; all pieces must be here."""
        if self._span == (0, self.flat.size) and not self._beside:
            return self.optimizer.state_dict()
        held = self.held()
        if not within([self.flat.span(piece) for piece, _ in held], 0, self.flat.size):
            raise InvalidValue("optimizer", "a range of its state", "all of it, which only several workers have")
        with self._as_whole(self._assembled(self.flat.pieces(0, self.flat.size), held, reuse=True, device=CPU)):
            return self.optimizer.state_dict()

    def load_state_dict(self, tree: Mapping[str, Any]) -> None:
        """Settings; and moments, if given, which stay where they were read to until a range is held."""
        with self._as_whole([]):
            self.optimizer.load_state_dict({"state": {}, "param_groups": tree["param_groups"]})
        if "state" not in tree:
            return
        self.forget()
        everything = [each for group in self._groups for each in group]
        kept = {id(everything[int(at)]): state for at, state in tree["state"].items()}
        for number, each in enumerate(self.flat.parameters):
            self._beside.append((ParameterSlice(number, 0, each.numel()), _flattened(kept.get(id(each), {}))))

    def _fill(self, found: Iterable[tuple[torch.nn.Parameter, Held]]) -> None:
        for key, (_, kept) in found:
            if kept:
                self.optimizer.state[key] = {name: _shaped(value, key) for name, value in kept.items()}

    @contextmanager
    def _as_whole(self, found: Sequence[Held]) -> Iterator[None]:
        """The optimizer has whole parameters and this state, for a moment."""
        optimizer = self.optimizer
        groups, state = [group["params"] for group in optimizer.param_groups], optimizer.state
        try:
            optimizer.state = defaultdict(dict)
            self._fill((self.flat.parameters[held[0].parameter], held) for held in found)
            for group, parameters in zip(optimizer.param_groups, self._groups, strict=True):
                group["params"] = parameters
            yield
        finally:
            optimizer.state = state
            for group, parameters in zip(optimizer.param_groups, groups, strict=True):
                group["params"] = parameters

    def _assembled(
        self,
        pieces: Iterable[ParameterSlice],
        held: Sequence[Held],
        *,
        reuse: bool = False,
        device: torch.device | None = None,
    ) -> list[Held]:
        """Each piece from those that overlap it; a copy, unless the same memory may be used."""
        by_parameter: dict[int, list[Held]] = {}
        for piece, state in held:
            if state:
                by_parameter.setdefault(piece.parameter, []).append((piece, state))
        found: list[Held] = []
        for piece in pieces:
            sources = by_parameter.get(piece.parameter, [])
            like = device or self.flat.parameters[piece.parameter].device
            found.append((piece, _joined(piece, sources, self._kept[piece.parameter], like, reuse=reuse)))
        return found


def _joined(
    piece: ParameterSlice, sources: Sequence[Held], kept: StateSpec, device: torch.device, *, reuse: bool
) -> dict[str, Any]:
    parts = [
        (max(each.low, piece.low), min(each.high, piece.high), each.low, state)
        for each, state in sources
        if max(each.low, piece.low) < min(each.high, piece.high)
    ]
    if not parts:
        return {}
    found: dict[str, Any] = {}
    for name, dtype in kept.moments:
        low, high, start, state = parts[0]
        if (low, high) == (piece.low, piece.high):
            view = state[name][low - start : high - start]
            same = view.device == device and view.dtype == dtype
            found[name] = view if reuse and same else view.to(device, dtype, copy=True)
            continue
        found[name] = torch.empty(piece.size, dtype=dtype, device=device)
        for low, high, start, state in parts:
            found[name][low - piece.low : high - piece.low].copy_(state[name][low - start : high - start])
    for name, dtype, there in kept.counters:
        value = parts[0][3][name]
        found[name] = torch.as_tensor(value, dtype=dtype).to(there).clone()
    return found


def _settled(found: Sequence[Held]) -> list[Held]:
    """The same memory if nearly all of it is used; else a copy, so that nothing else stays allocated with it."""
    used: dict[int, int] = defaultdict(int)
    for _, state in found:
        for value in filter(_is_moment, state.values()):
            used[value.untyped_storage().data_ptr()] += value.nbytes

    def settled(value: Any) -> Any:
        if not _is_moment(value):
            return value
        memory = value.untyped_storage()
        return value if memory.nbytes() <= MOST_OF * used[memory.data_ptr()] else value.clone()

    return [(piece, {name: settled(value) for name, value in state.items()}) for piece, state in found]


def _is_moment(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _flattened(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.view(-1) if _is_moment(value) else value for name, value in state.items()}


def _shaped(value: Any, like: torch.Tensor) -> Any:
    return value.view(like.shape) if _is_moment(value) else value

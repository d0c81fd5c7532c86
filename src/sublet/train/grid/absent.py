"""Tensors of other parts of a cut model: shape, type and device they have; who asks for their numbers is told.

    weights    that our part does not hold, by whatever way a script comes to them: an attribute between two steps, a
               list from before the session, a term of the loss that begins with a later step
    answers    of ghosts, and what is computed of them until our first block has taken what came: a *shadow*, which is
               thrown away there. Behind it they are of use to nobody: who takes one is on a path past the blocks

A weight is another class meanwhile, and the same object: so nothing that is ours costs anything. Numbers that a forward
reads out of a shadow (`if x.isnan().any()`) are zeros, and are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn

from sublet.errors import InvalidValue
from sublet.train.grid.uncompiled import UNCOMPILED

__all__ = ["Absence", "Absent", "moments_elsewhere", "past_the_blocks", "plainly", "present"]

plainly = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001 - torch's own documents say so; no other name is public

TOLD = """
    shape dtype device ndim layout itemsize nbytes names name requires_grad requires_grad_ is_leaf grad grad_fn
    output_nr retains_grad retain_grad register_hook register_post_accumulate_grad_hook _backward_hooks
    _post_accumulate_grad_hooks _version _is_view is_cuda is_cpu is_meta is_mps is_xpu is_xla is_mtia is_sparse
    is_sparse_csr is_quantized is_mkldnn is_nested is_tensor is_floating_point is_complex is_signed is_contiguous
    is_conj is_neg is_inference is_same_size is_shared is_pinned size dim ndimension numel nelement stride element_size
    get_device storage_offset untyped_storage data_ptr dense_dim sparse_dim has_names result_type can_cast __len__
    __hash__ zeros_like ones_like empty_like full_like rand_like randn_like randint_like
    new_zeros new_ones new_empty new_empty_strided new_full new_tensor
"""
FACTS = frozenset(TOLD.split())  # that follow from no numbers
AS_ANOTHER = frozenset(("to", "type_as", "view_as", "expand_as", "reshape_as"))  # which takes no numbers of the other
SAME = frozenset(("data", "detach"))  # numbers or not, it is still elsewhere
WEIGHTS = (
    "left to the worker that has it; here are its shape, type and device. A penalty on weights is weight_decay of the "
    "optimizer, other terms of the loss belong into the block whose weights they take, and the checkpoint has all "
    "weights, for a session without parts=, or with one worker"
)
MOMENTS = (
    "left to the worker that has it: the optimizer here is of one part. The checkpoints of the session have all of its "
    "state, for a session without parts=, or with one worker"
)
ANSWERS = (
    "of a model in which one tensor goes from each block to the next, and nothing past them: what is made before the "
    "blocks, or by another one, is on another worker. Put it into the blocks, made of what they get and of the batch; "
    "and call the model once for each micro-batch"
)


class Absence:
    """Of one model. `shadow`: what was received is not taken yet, so that answers of ghosts may be computed with."""

    def __init__(self) -> None:
        self.shadow = False
        self._refused: InvalidValue | None = None  # in this forward
        self._cast = False
        self._away: list[nn.Parameter] = []
        self._written: list[torch.Tensor] = []  # tensors of the script's that a shadow fell on

    def only(self, away: Mapping[str, nn.Parameter]) -> None:
        """These are with others, by their names, and no more."""
        self.clear()
        for name, each in away.items():
            _put(each, AbsentWeight, (self, name))
        self._away = list(away.values())

    def clear(self) -> None:
        """All are here."""
        for each in self._away:
            _put_back(each)
        self._away = []

    def begin(self) -> None:
        """A forward; what was refused before it is none of its business."""
        self._refused = None

    def cast(self) -> None:
        """A shadow falls. Functions that are compiled run as they are in it: compilers know nothing of it."""
        if not self._cast:
            self._cast = True
            UNCOMPILED.begin()

    def lift(self) -> None:
        """What was received is taken, or nobody is left who would take it."""
        if self._cast:
            UNCOMPILED.end()
        self.shadow = self._cast = False

    def end(self) -> None:
        """A forward is over."""
        self.lift()
        for each in self._written:
            _put_back(each)
        self._written = []

    def refuse(self, error: InvalidValue) -> NoReturn:
        """Who asks for numbers. A forward may catch it (`except Exception`), and is told once more when it is over."""
        self._refused = error
        raise error

    def check(self) -> None:
        """InvalidValue if something was refused in the forward that is over."""
        error, self._refused = self._refused, None
        if error is not None:
            raise error

    def answered(self, answer: torch.Tensor, name: str) -> torch.Tensor:
        """By the ghost of this."""
        _put(answer, Absent, (self, f"what {name} gives"))
        return answer

    def follow(self, made: Any, name: str, call: tuple[str, tuple[Any, ...]]) -> None:
        """What was made of a shadow is one, and so is what it was written into."""
        asked, args = call
        if _writes(asked) and args and type(args[0]) is torch.Tensor:
            for each in (args[0], args[0]._base) if args[0]._is_view() else (args[0],):  # noqa: SLF001 - torch's own
                if type(each) is torch.Tensor:
                    _put(each, Absent, (self, name))
                    self._written.append(each)
        for each in _tensors(made):
            if type(each) is torch.Tensor and not any(each is given for given in args):
                _put(each, Absent, (self, name))


class Absent(torch.Tensor):
    """With another part; it has in it whose it is, and its name."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Whatever is done with it."""
        facts = kwargs or {}
        slot = func.__name__
        asked = func.__self__.__name__ if slot in ("__get__", "__set__") else slot  # type: ignore[attr-defined]  # a slot is of its name
        with plainly():
            if asked in FACTS or (asked in AS_ANOTHER and not isinstance(args[0], Absent)):
                return func(*args, **facts)
            absence, name = _last_told((args, facts))
            if asked == "__deepcopy__" and absence is not None and absence.shadow:
                func, args = torch.Tensor.clone, args[:1]  # as it has no class that could be made anew
            if asked == "__repr__":
                return f"<{name}, which is with another part of the model>"
            if absence is None:
                return func(*args, **facts)
            if not absence.shadow:
                if asked in SAME and slot != "__set__":
                    return args[0]
                absence.refuse(_refused(name, asked, (args, facts)))
            try:
                made = func(*args, **facts)
            except RuntimeError:
                if _writes(asked) and isinstance(args[0], Absent):  # one number, seen many times, cannot be written to
                    return args[0]
                raise
            absence.follow(made, name, (asked, args))
            return made


class AbsentWeight(Absent, nn.Parameter):
    """A parameter meanwhile."""

    def __reduce_ex__(self, _: Any) -> Any:
        """Into a file: `torch.save(model.state_dict(), ...)`."""
        raise _refused(_last_told(self)[1], "a file", (self,))


@contextmanager
def present(weights: Iterable[torch.Tensor]) -> Iterator[None]:
    """Those of them that are not ours are as if they were: we keep them for others, with their numbers."""
    kept = [(each, vars(each)["_absent"]) for each in weights if isinstance(each, Absent)]
    for each, _ in kept:
        _put_back(each)
    try:
        yield
    finally:
        for each, absent in kept:
            _put(each, AbsentWeight, absent)


def past_the_blocks(found: Absent, where: str) -> InvalidValue:
    """It is used where numbers of ours have to be."""
    return InvalidValue("parts", f"{_last_told(found)[1]} as {where}", ANSWERS)


def moments_elsewhere(weight: Absent) -> InvalidValue:
    """What an optimizer keeps of it is asked for."""
    return InvalidValue("parts", f"what the optimizer keeps of {_last_told(weight)[1]}", MOMENTS)


def _writes(asked: str) -> bool:
    return asked == "__setitem__" or (asked.endswith("_") and not asked.endswith("__"))


def _put(tensor: torch.Tensor, kind: type[Absent], absent: tuple[Absence, str]) -> None:
    vars(tensor).update(_was=type(tensor), _absent=absent)
    tensor.__class__ = kind


def _put_back(tensor: torch.Tensor) -> None:
    facts = vars(tensor)
    tensor.__class__ = facts.pop("_was")
    del facts["_absent"]


def _last_told(value: Any) -> tuple[Absence | None, str]:
    """What comes last is nearest to what is wrong: an embedding is in all that follows it."""
    return next(reversed([*_told(value)]), (None, ""))


def _told(value: Any) -> Iterator[tuple[Absence, str]]:
    """By those of ours that are in it."""
    if isinstance(value, Absent):
        if "_absent" in vars(value):
            yield vars(value)["_absent"]
    elif isinstance(value, dict):
        yield from _told(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _told(each)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _refused(name: str, asked: str, given: Any) -> InvalidValue:
    weight = any(isinstance(each, AbsentWeight) for each in _tensors(given))
    return InvalidValue("parts", f"the numbers of {name}, for {asked}", WEIGHTS if weight else ANSWERS)

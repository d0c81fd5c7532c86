"""What stands in place of modules while a model is cut: ghosts of those of others, and listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map

from sublet.train.grid.absent import plainly
from sublet.train.grid.untouched import untouched

__all__ = ["Called", "Ghost", "Heard", "Stand"]


class Stand(nn.Module):
    """In place of another module, whose attributes, modules and parameters are the model's meanwhile as ever.

    What it knows itself has names that no attribute of a script's can have, with a dot. It says that it is of the
    other's class, to who asks `isinstance`; so `super()` has to be told which class is meant.
    """

    __class__ = property(lambda self: type(self.__dict__.get("sublet.inner", self)))  # as Mock does

    def __init__(self, inner: nn.Module) -> None:
        super(Stand, self).__init__()  # noqa: UP008 - see above
        self.__dict__["sublet.inner"] = inner
        del self.__dict__["training"]  # the other's

    def __repr__(self) -> str:
        return repr(self.__dict__["sublet.inner"])

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - as torch has it
        """As the other does it."""
        self.__dict__["sublet.inner"].train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super(Stand, self).__getattr__(name)  # noqa: UP008 - see above
        except AttributeError:
            return getattr(self.__dict__["sublet.inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Of the other (`block.scale = 0.5` between two steps), but for what torch keeps of any module, as hooks."""
        if name in self.__dict__:
            super(Stand, self).__setattr__(name, value)  # noqa: UP008 - see above
        else:
            setattr(self.__dict__["sublet.inner"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["sublet.inner"], name)

    def named_modules(self, *args: Any, **facts: Any) -> Any:
        """Those of the other: a list of parameters without them would be one of something else."""
        return self.__dict__["sublet.inner"].named_modules(*args, **facts)

    def named_children(self) -> Any:
        """Those of the other."""
        return self.__dict__["sublet.inner"].named_children()

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """To the other, and to those within it."""
        self.__dict__["sublet.inner"].apply(fn)
        return self

    def compile(self, *args: Any, **facts: Any) -> None:
        """The other."""
        self.__dict__["sublet.inner"].compile(*args, **facts)

    def state_dict(self, *args: Any, **facts: Any) -> Any:
        """That of the other, by the same names."""
        return self.__dict__["sublet.inner"].state_dict(*args, **facts)


def _of_the_other(name: str) -> Callable[..., Any]:
    def registered(self: Stand, *args: Any, **facts: Any) -> Any:
        return getattr(self.__dict__["sublet.inner"], name)(*args, **facts)

    return registered


for _name in dir(nn.Module):  # a hook is to be there whatever stands in for the other next
    if _name.startswith("register_") and _name.endswith("_hook"):
        setattr(Stand, _name, _of_the_other(_name))


class Ghost(Stand):
    """A module of another part: right shapes, no work, no memory; or memory of its own, for who writes into it.

    `left` is called when it has answered, `seen` is what it remembers of earlier answers; `mark` makes an answer known
    as one, and `keep` gets what the module would have left in attributes, of itself and of those within it.
    """

    looking: ClassVar[int] = 0  # how many look what their modules would make: nobody is to take that for a run

    def __init__(
        self,
        inner: nn.Module,
        seen: dict[Any, Any] | None = None,
        left: Callable[[], None] | None = None,
        *,
        own: bool = False,
        mark: Callable[[torch.Tensor], torch.Tensor] = lambda made: made,
        keep: Callable[[nn.Module, str, torch.Tensor], None] = lambda *_: None,
    ) -> None:
        super().__init__(inner)
        self.__dict__["sublet.seen"] = {} if seen is None else seen
        self.__dict__["sublet.left"], self.__dict__["sublet.made"] = left, partial(_zeros, own=own, mark=mark)
        self.__dict__["sublet.keep"] = keep

    def forward(self, *args: Any, **facts: Any) -> Any:
        """As the module's own."""
        inner, seen, zeros = (self.__dict__[f"sublet.{name}"] for name in ("inner", "seen", "made"))
        made, kept = _made_of_nothing(inner, seen, args, facts, zeros)
        for each in kept:
            self.__dict__["sublet.keep"](*each)
        if self.__dict__["sublet.left"] is not None:
            self.__dict__["sublet.left"]()
        return made


class Called(Stand):
    """`answers` does its work."""

    def __init__(self, inner: nn.Module, answers: Callable[..., Any]) -> None:
        super().__init__(inner)
        self.__dict__["sublet.answers"] = answers

    def forward(self, *args: Any, **facts: Any) -> Any:
        """As the module's own."""
        return self.__dict__["sublet.answers"](*args, **facts)


class Heard(Called):
    """Tells when it is called, and of parameters that others read: `x @ self.embed.weight.T` runs it no second time."""

    def __init__(self, inner: nn.Module, heard: Callable[[], None], answers: Callable[..., Any]) -> None:
        super().__init__(inner, answers)
        self.__dict__["sublet.heard"] = heard

    def forward(self, *args: Any, **facts: Any) -> Any:
        """As the module's own."""
        self.__dict__["sublet.heard"]()
        return super().forward(*args, **facts)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, nn.Parameter):
            self.__dict__["sublet.heard"]()
        return found


def _made_of_nothing(
    module: nn.Module, seen: dict[Any, Any], args: Any, facts: Any, zeros: Callable[..., Any]
) -> tuple[Any, list[tuple[nn.Module, str, torch.Tensor]]]:
    """What the module would return, and leave in attributes, as zeros; remembered by the shapes of what it gets."""
    flat, form = tree_flatten((args, facts))
    with plainly():
        key = (tuple(map(_shape_of, flat)), str(form), module.training)
    if any(isinstance(each, _Unknown) for each in key[0]):  # what it does may change, and its number may be another's
        seen = {}
    tensors = [each for each in flat if isinstance(each, torch.Tensor)]
    if key not in seen:
        seen[key] = _shapes_made(module, args, facts, tensors)
    at = tensors[0] if tensors else next(module.parameters(), None)
    made, left, kept = tree_map(lambda each: zeros(each, None if at is None else at.device), seen[key])
    for name, more in left.items():
        given = args[name] if isinstance(name, int) else facts[name]
        given.extend(more) if isinstance(given, list) else given.update(more)
    return made, kept


def _shapes_made(
    module: nn.Module, args: Any, facts: Any, tensors: list[torch.Tensor]
) -> tuple[Any, dict[Any, Any], list[Any]]:
    """Of tensors without numbers; and what it leaves in lists and dicts that it gets, by place or name; in attributes.

    A module that asks for numbers (`if mask.any()`) has no answer then. It is taken to give back what it gets, as most
    blocks do: no more is asked of it than that the forward comes to our own blocks, which get what others have made.
    """
    with plainly():
        state = {name: each.detach().to("meta") for name, each in module.named_parameters(remove_duplicate=False)}
        state |= {name: each.to("meta") for name, each in module.named_buffers(remove_duplicate=False)}
    Ghost.looking += 1
    try:
        with untouched(module.modules()), torch.no_grad():
            for each in module.modules():
                each._compiled_call_impl = None  # noqa: SLF001 - nothing is computed that would be worth compiling
            places, names = tree_map(_to_meta, args), tree_map(_to_meta, facts)
            before = [(each, dict(vars(each))) for each in module.modules()]
            made = functional_call(module, state, places, names)
            left = _left({**dict(enumerate(args)), **facts}, {**dict(enumerate(places)), **names})
            return made, left, [*_kept(before)]
    except Exception:
        floats = [each for each in tensors if each.is_floating_point()] or tensors
        if not floats:
            raise
        return _to_meta(floats[0]), {}, []
    finally:
        Ghost.looking -= 1


def _left(before: dict[Any, Any], now: dict[Any, Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name, given in before.items():
        if isinstance(given, list) and len(now[name]) > len(given):
            found[name] = now[name][len(given) :]
        elif isinstance(given, dict) and now[name].keys() - given.keys():
            found[name] = {each: value for each, value in now[name].items() if each not in given}
    return found


def _kept(before: Iterable[tuple[nn.Module, dict[str, Any]]]) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for module, was in before:
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value is not was.get(name):
                yield module, name, value


def _shape_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return value if isinstance(value, int | float | str | bool | None) else _Unknown()


class _Unknown:
    """An argument of which we know nothing."""


def _to_meta(value: Any) -> Any:
    with plainly():
        return value.to("meta") if isinstance(value, torch.Tensor) else value


def _zeros(value: Any, device: torch.device | None, *, own: bool, mark: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Of its shape: one number, seen many times, unless it is to have memory of its own."""
    if not (isinstance(value, torch.Tensor) and value.is_meta):
        return value
    if own:
        return mark(torch.zeros(value.shape, dtype=value.dtype, device=device))
    return mark(torch.zeros((), dtype=value.dtype, device=device).expand(value.shape))

"""Before and behind each call of a module, outside of what is compiled of it.

Hooks are within what `module.compile()` compiles: what they do breaks its graph, or is an error where it must not be
broken (`fullgraph=True`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["around_calls"]

Before = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]  # None, or what it gets in place of that
Behind = Callable[[nn.Module], None]


def around_calls(module: nn.Module, before: Before | None, behind: Behind | None) -> Callable[[], None]:
    """Until what this returns is called."""
    compiled = module._compiled_call_impl  # noqa: SLF001 - torch has no other place for it
    if compiled is not None:
        return _around_compiled(module, compiled, before, behind)
    hooks = []
    if before is not None:
        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
    if behind is not None:
        hooks.append(module.register_forward_hook(lambda *_: behind(module)))

    def undo() -> None:
        for hook in hooks:
            hook.remove()

    return undo


def _around_compiled(
    module: nn.Module, compiled: Callable[..., Any], before: Before | None, behind: Behind | None
) -> Callable[[], None]:
    def call(*args: Any, **facts: Any) -> Any:
        given = None if before is None else before(module, args, facts)
        args, facts = given or (args, facts)
        made = compiled(*args, **facts)
        if behind is not None:
            behind(module)
        return made

    def undo() -> None:
        if module._compiled_call_impl is call:  # noqa: SLF001 - as above
            module._compiled_call_impl = compiled  # noqa: SLF001 - as above

    module._compiled_call_impl = call  # noqa: SLF001 - as above
    return undo

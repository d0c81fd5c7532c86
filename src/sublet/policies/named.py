"""A policy by its name, and its options in parentheses: `mip(objective=total, horizon_s=3600)`.

Options are the fields of the policy that are a number, a text, a truth value or one of several words.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import StrEnum
from types import UnionType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from sublet import plugins
from sublet.domain.plan import Policy
from sublet.errors import InvalidValue
from sublet.policies.price.policy import in_a_hurry

NAMED: dict[str, bool | None] = {"true": True, "false": False, "none": None}
FORM = "NAME, or NAME(OPTION=VALUE, ...)"


def policy_named(text: str, *, hurry: bool = False) -> Policy:
    """The policy, in a hurry or not; UnknownName and InvalidValue say what is wrong with the text.

    >>> policy_named("mip(objective=total, may_pause=false)").objective
    'total'
    """
    name, opened, rest = text.partition("(")
    kind = cast(type, plugins.load("sublet.policies", name.strip()))
    if opened and not rest.rstrip().endswith(")"):
        raise InvalidValue("policy", text, FORM)
    words = rest.rstrip()[:-1] if opened else ""
    options = dict(_option(kind, text, word) for word in words.split(",") if word.strip())
    policy = cast(Policy, kind(**options))
    return in_a_hurry(policy) if hurry else policy


def _option(kind: type, text: str, word: str) -> tuple[str, Any]:
    name, equals, said = (part.strip() for part in word.partition("="))
    if not equals:
        raise InvalidValue("policy", text, FORM)
    hints = get_type_hints(kind) if is_dataclass(kind) else {}
    known = [field.name for field in fields(kind) if _words(hints[field.name])] if is_dataclass(kind) else []
    if name not in known:
        raise InvalidValue(f"option of {text.partition('(')[0]}", name, ", ".join(known) or "none: it has no options")
    for hint in _alternatives(hints[name]):
        value = _read(said, hint)
        if value is not None or (hint is type(None) and said == "none"):
            return name, value
    raise InvalidValue(name, said, _words(hints[name]))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _words(hint: Any) -> str:
    """The values that may be said, in words; "" for a type that no text can say."""
    kinds = {float: "a number", int: "a whole number", bool: "true or false", type(None): "none"}
    found = []
    for each in _alternatives(hint):
        if get_origin(each) is Literal:
            found.append("one of " + ", ".join(get_args(each)))
        elif isinstance(each, type) and issubclass(each, StrEnum):
            found.append("one of " + ", ".join(each))
        elif each in kinds:
            found.append(kinds[each])
    return " or ".join(found) if found != ["none"] else ""


def _read(said: str, hint: Any) -> Any:
    """The value; None where it is not one of these."""
    if get_origin(hint) is Literal:
        return said if said in get_args(hint) else None
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(said) if said in list(hint) else None
    if hint is bool:
        return NAMED.get(said)
    if hint in (int, float):
        try:
            return hint(said)
        except ValueError:
            return None
    return None

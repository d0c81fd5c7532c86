"""A changed source becomes the code of functions that are loaded already, where the change is inside of functions.

What is evaluated when a module is imported (a constant, a default, a table that a function built) has been by then:
such a change is planted in a fresh process (`run.py`).
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CodeType, FrameType, FunctionType

from tests.mutants.draw import LAB, SOURCE, path_of

__all__ = ["Loaded", "changed_functions"]

OPTIMIZED = 0x1  # flag of a function's code; bodies of modules and classes lack it
Key = tuple[str, str, int]  # file, qualified name, first line


class Loaded:
    """The functions of Sublet in this process. Begun before anything of it is imported, asked after."""

    def __init__(self) -> None:
        self._called: set[Key] = set()
        self._functions: dict[Key, list[FunctionType]] = defaultdict(list)
        self._caches: list[_lru_cache_wrapper[object]] = []
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith((str(SOURCE), str(LAB))):
            self._called.add(_key(frame.f_code))

    def take_stock(self) -> None:
        """All is imported: from here on, functions may run."""
        sys.setprofile(None)
        gc.unfreeze()  # who froze what it had imported hid it
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename.startswith((str(SOURCE), str(LAB))):
                self._functions[_key(each.__code__)].append(each)
            elif type(each) is _lru_cache_wrapper and (each.__module__ or "").startswith(("sublet", "tests")):
                self._caches.append(each)
        gc.freeze()

    def takes(self, file: str, source: str) -> list[tuple[FunctionType, CodeType]] | None:
        """Functions and what their code becomes; none where the change would come too late here."""
        path = path_of(file)
        pairs = changed_functions(path, path.read_text(encoding="utf-8"), source)
        if not pairs:
            return None
        found: list[tuple[FunctionType, CodeType]] = []
        for old, new in pairs:
            functions = self._functions.get(_key(old), [])
            if not functions or _key(old) in self._called:
                return None
            found += [(each, new) for each in functions]
        return found

    def plant(self, changes: Iterable[tuple[FunctionType, CodeType]]) -> None:
        """For good: in a child."""
        for function, code in changes:
            function.__code__ = code
        for cache in self._caches:
            cache.cache_clear()


def changed_functions(path: Path, old: str, new: str) -> list[tuple[CodeType, CodeType]] | None:
    """The outermost functions that differ, each with what it becomes; None where a body of a module or class does."""
    return _differing(compile(old, str(path), "exec"), compile(new, str(path), "exec"))


def _differing(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    if not _is_alike(old, new):
        return None
    found = []
    for before, after in zip(_codes(old), _codes(new), strict=True):
        if before.co_flags & OPTIMIZED:
            if not _is_same(before, after):
                found.append((before, after))
        else:
            inside = _differing(before, after)
            if inside is None:
                return None
            found += inside
    return found


def _is_same(one: CodeType, other: CodeType) -> bool:
    return _is_alike(one, other) and all(map(_is_same, _codes(one), _codes(other)))


def _is_alike(one: CodeType, other: CodeType) -> bool:
    """But for what is inside, and for where its lines are."""
    return (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and [repr(each) for each in one.co_consts if not isinstance(each, CodeType)]
        == [repr(each) for each in other.co_consts if not isinstance(each, CodeType)]
        and len(_codes(one)) == len(_codes(other))
    )


def _codes(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _key(code: CodeType) -> Key:
    return code.co_filename, code.co_qualname, code.co_firstlineno

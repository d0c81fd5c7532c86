"""A training that is written as methods of an object: looked at as functions, and written as it was.

    class Trainer:                                         def fit_of_Trainer(self_model, self_loader, epochs):
        def __init__(self, model, loader):                     for epoch in range(epochs):
            self.model, ...                      is                ...
        def fit(self, epochs):
            for epoch in range(epochs): ...                fit_of_Trainer(model, loader, 3)
    Trainer(model, loader).fit(3)

Each attribute is a name that functions are given, and what `__init__` says stands where the object is made. That text
is converted as any other, and what has become of the functions is put back as methods. So it must be plain: one object,
of which one method is called; attributes that `__init__` makes, line by line, and that only this method makes anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sublet.cli.work.script.calls import BUILTINS
from sublet.cli.work.script.functions import statement_of, trains
from sublet.cli.work.script.owner import SELF, Odd, TrainerClass, indent_of, is_name, made_by
from sublet.cli.work.script.reading import Script, names_in
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["Methods", "as_functions"]

CLASS, GIVEN, INIT, OBJECT, ENDS = "a class begins", "given", "__init__", "an object begins", "ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """The script with functions in place of the methods of a class."""

    script: Script
    lines: tuple[int, ...]  # of the script that it was, for each of this
    name: str  # of the class
    attributes: frozenset[str]
    given: dict[str, tuple[str, ...]]  # to each method: attributes, in order
    spoken: dict[str, set[str]]  # names in each method, as it was
    indent: str  # of methods
    kept: tuple[str, str]  # the head of the class, and `__init__`, as they are
    objects: tuple[tuple[str, str], ...]  # lines that make it, or call it: as they were, and as they are looked at

    def put_back(self, text: str, ours: Iterable[str]) -> str:
        """The converted text with a class again."""
        ours = list(ours)
        kept = ours[-1]
        for was, seen in self.objects:
            if text.count(seen) != 1:
                raise self._refused("what it is made from changes")
            text = text.replace(seen, was)
        head, _, rest = text.partition(f"{_mark(CLASS)}\n")
        body, _, tail = rest.partition(f"{_mark(ENDS)}\n")
        lines = [line for line in body.splitlines(keepends=True) if _mark(GIVEN) not in line]
        lines = self._as_methods("".join(lines), kept).splitlines(keepends=True)
        body = "".join(self.indent + line if line.strip() else line for line in lines)
        body = body.replace(f"{self.indent}{_mark(INIT)}\n", self.kept[1])
        text = f"{head}{self.kept[0]}{body}{tail}"
        if f"_of_{self.name}" in text or "# sublet: " in text or not _is_python(text):  # never a wrong diff
            raise self._refused("its methods are given what the session keeps")
        if unseen := self._new_names(text) - {*ours}:
            raise self._refused(f"`{min(unseen)}` is part of the training, and is not seen in its methods")
        return text

    def _new_names(self, text: str) -> set[str]:
        """Names that a method did not speak of, and that are not imported either."""
        made = Script(self.script.path, text)
        owner = next(each for each in made.tree.body if getattr(each, "name", "") == self.name)
        methods = [each for each in ast.walk(owner) if isinstance(each, ast.FunctionDef) and each.name in self.spoken]
        new = {name for each in methods for name in names_in(each) - self.spoken[each.name] - BUILTINS}
        return {name for name in new if not made.is_imported(name)}

    def _as_methods(self, body: str, kept: str) -> str:
        for method, attributes in self.given.items():
            said = ", ".join(f"{SELF}_{each}" for each in attributes)
            name = re.escape(f"{method}_of_{self.name}(") + (re.escape(said) + r"(?:, |(?=\)))" if said else "")
            body = re.sub(rf"\bdef {name}(?=\))", f"def {method}({SELF}", body)
            body = re.sub(rf"\bdef {name}", f"def {method}({SELF}, ", body)
            body = re.sub(rf"(?<!def )\b{name}", f"{SELF}.{method}(", body)
        own = "|".join(sorted(self.attributes))
        names = set(re.findall(rf"\b{kept}\.(\w+)", body))
        if clash := {name for name in names & self.attributes if f"{SELF}_{name}" in names}:
            raise self._refused(f"`{min(clash)}` would be kept twice")
        body = re.sub(rf"\b{kept}\.{SELF}_({own})\b", rf"{kept}.\1", body)
        body = re.sub(rf"\b{SELF}_({own})=(?={SELF}_\1\b)", r"\1=", body)
        return re.sub(rf"\b{SELF}_({own})\b", rf"{SELF}.\1", body)

    def refusal(self, error: CannotConvert) -> CannotConvert:
        """In the words of the script as it was."""
        line = self.lines[min(max(error.line, 1), len(self.lines)) - 1]
        return CannotConvert(self._in_words(error.why), line, self._in_words(error.do))

    def _in_words(self, text: str) -> str:
        text = re.sub(rf"\b(\w+)_of_{self.name}\b", rf"{self.name}.\1", text)
        return re.sub(rf"\b{SELF}_({'|'.join(sorted(self.attributes))})\b", rf"{SELF}.\1", text)

    def _refused(self, why: str) -> CannotConvert:
        line = next(at for at, each in enumerate(self.script.lines, 1) if _mark(CLASS) in each)
        do = "write the session by hand in the method that has the epochs, and what the object remembers by s.keep()"
        return self.refusal(CannotConvert(f"class {self.name} trains, and {why}", line, do))


def as_functions(script: Script) -> Methods | None:
    """None if no class trains, or it is in a form that is not known."""
    owners = [node for node in script.tree.body if isinstance(node, ast.ClassDef) and _trains(node)]
    if len(owners) != 1:
        return None
    try:
        return _as_functions(script, TrainerClass(script, owners[0]))
    except Odd:
        return None


def _trains(owner: ast.ClassDef) -> bool:
    return trains(owner)


def _as_functions(script: Script, found: TrainerClass) -> Methods:
    name = found.owner.name
    spelled = re.compile(rf"\b{SELF}_({'|'.join(found.attributes) or '.'})\b|\w_of_{name}\b|# sublet: ")
    if not found.attributes or spelled.search(script.source):
        raise Odd
    given = {each: tuple(one for one in found.attributes if one in found.given(each)) for each in found.methods}
    made, values = made_by(script, found)
    objects = _objects(script, found, made, [values[each] for each in given[found.outer]])
    body, kept = _functions(script, found, given)
    # Who looks into a method knows an attribute by what it is where the object is made.
    known = {attribute: name for attribute, name in values.items() if name != f"{SELF}_{attribute}"}
    body[1:1] = [(body[0][0], f"{SELF}_{each} = {name}  {_mark(GIVEN)}\n") for each, name in known.items()]
    out: list[tuple[int, str]] = []
    skip = 0
    for number, line in enumerate(script.lines, 1):
        if number == found.owner.lineno:
            out += body
            skip = found.owner.end_lineno or number
        elif number in objects:
            out += [(number, each) for each in objects[number].seen.splitlines(keepends=True)]
            skip = objects[number].last
        if number > skip:
            out.append((number, line))
    seen = Script(script.path, "".join(line for _, line in out))
    made_so = [each for each in seen.tree.body if getattr(each, "name", "").endswith(f"_of_{name}")]
    inside = [node for each in made_so for node in ast.walk(each)]
    if any(is_name(node, SELF) or getattr(node, "arg", "") == SELF for node in inside):
        raise Odd  # a head, or a call, in a form that was not found
    return Methods(
        script=seen,
        lines=tuple(number for number, _ in out),
        name=name,
        attributes=frozenset(found.attributes),
        given={each: attributes for each, attributes in given.items() if each != "__init__"},
        spoken={each: names_in(method) for each, method in found.methods.items()},
        indent=indent_of(script.lines[found.owner.body[0].lineno - 1]),
        kept=kept,
        objects=tuple((each.was, each.seen) for each in objects.values()),
    )


class _Object(NamedTuple):
    """Lines that make the object, or call its method."""

    last: int
    was: str
    seen: str


def _objects(script: Script, found: TrainerClass, made: list[str], given: list[str]) -> dict[int, _Object]:
    said = [*given, *map(ast.unparse, found.called.args), *map(ast.unparse, found.called.keywords)]
    lines: dict[int, list[str]] = {}
    for call, does in ((found.made, made), (found.called, [f"{found.outer}_of_{found.owner.name}({', '.join(said)})"])):
        lines.setdefault(statement_of(script, call).lineno, []).extend(does)
    ends = [statement_of(script, call) for call in (found.made, found.called)]
    objects = {}
    for statement in ends:
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        was, deep = "".join(script.lines[first - 1 : last]), indent_of(script.lines[first - 1])
        does = [f"pass  {_mark(OBJECT)} {first}", *lines[first], f"pass  {_mark(ENDS)} {first}"]
        objects[first] = _Object(last, was, "".join(f"{deep}{line}\n" for line in does))
    return objects


def _functions(
    script: Script, found: TrainerClass, given: dict[str, tuple[str, ...]]
) -> tuple[list[tuple[int, str]], tuple[str, str]]:
    """The methods as functions, line by line; and what is left out of them: the head of the class, and `__init__`."""
    owner, init, own = found.owner, found.methods["__init__"], indent_of(script.lines[found.owner.body[0].lineno - 1])
    first = min(each.lineno for each in found.methods.values())
    first = min([first, *(each.lineno for method in found.methods.values() for each in method.decorator_list)])
    last = owner.end_lineno or owner.lineno
    if any(line.strip() and not line.startswith(own) for line in script.lines[first - 1 : last]) or init.decorator_list:
        raise Odd
    said = {each: ", ".join(f"{SELF}_{name}" for name in names) for each, names in given.items()}
    methods, attributes = "|".join(found.methods), "|".join(found.attributes)

    def called(seen: re.Match[str]) -> str:
        name, closed = seen.group(1), seen.group(2) or ""
        return f"{name}_of_{owner.name}({said[name]}{closed or (', ' if said[name] else '')}"

    lines = [(owner.lineno, f"{_mark(CLASS)}\n")]
    for number in range(first, last + 1):
        if init.lineno <= number <= (init.end_lineno or number):
            if number == init.lineno:
                lines.append((number, f"{_mark(INIT)}\n"))
            continue
        line = script.lines[number - 1].removeprefix(own)
        line = re.sub(rf"\bdef ({methods})\({SELF}(?:(\))|, )", lambda seen: f"def {called(seen)}", line)
        line = re.sub(rf"\b{SELF}\.({methods})\((\))?", called, line)
        line = re.sub(rf"\b{SELF}\.({attributes})\b", rf"{SELF}_\1", line)
        lines.append((number, line if line.endswith("\n") else f"{line}\n"))
    head = "".join(script.lines[owner.lineno - 1 : first - 1])
    return [*lines, (last, f"{_mark(ENDS)}\n")], (head, "".join(script.lines[init.lineno - 1 : init.end_lineno]))


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _mark(word: str) -> str:
    return f"# sublet: {word}"

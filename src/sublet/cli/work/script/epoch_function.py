"""A loop over batches in a function that is called for each epoch: the most common form that scripts have.

A function with all epochs in it is looked at in the same way, where it is given what it trains, by other names perhaps.

    def train(model, loader, optimizer, epoch):        def train(model, loader, optimizer, epoch, s):
        for x, y in loader:                                for x, y in s:
            ...                                                ...
                                              ->       with train.session(...) as s:
    for epoch in range(10):                                for epoch in s.epochs():
        train(model, loader, optimizer, epoch)                 train(model, loader, optimizer, epoch, s)
        test(model)                                            test(model)

A function that makes one step, and is called for each batch, is looked at where it is called in the same way.

What a loop carries is known only where all of it is seen. So the body of the function is put where it is called, that
text is converted, and what has become of the body is put back. `pass` with a mark stands at both ends of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sublet.cli.work.script.functions import count_of, function_of, makes, shared_names, statement_of
from sublet.cli.work.script.reading import Script, names_in
from sublet.cli.work.script.results import RETURNS, is_amid, is_plain, mark, returned_by, target_of, with_result
from sublet.cli.work.script.splice import CannotConvert, renamed
from sublet.cli.work.script.texts import long_texts

__all__ = ["Flat", "flat"]

DEFINED, BEGINS, GIVEN, SHARED, ENDS = "defined", "begins", "given", "global", "ends"
DEEPER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Nonlocal)
LEAVES = (ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """The script with the body of the function in place of its call."""

    script: Script
    lines: tuple[int, ...]  # of the script that it was, for each of this
    function: ast.FunctionDef
    call: ast.Call
    was: Script
    names: dict[str, str]  # of the function, and what they are here
    given: dict[str, str]  # to names here, by the call

    def put_back(self, text: str, ours: Iterable[str]) -> str:
        """The converted text with a function again, which is given those of our names that it needs."""
        lines = text.splitlines(keepends=True)
        defined, begins, given_here, returns, ends = (
            mark(self.function, word) for word in (DEFINED, BEGINS, GIVEN, RETURNS, ENDS)
        )
        begin, end = (next(at for at, line in enumerate(lines) if word in line) for word in (begins, ends))
        deep, result = _indent(lines[begin]), ""
        said = [line.split(f"  {given_here}")[0].strip() for line in lines[begin + 1 : end] if given_here in line]
        changed = self._changed(dict(line.split(" = ", 1) for line in said))
        body = [line for line in lines[begin + 1 : end] if given_here not in line]
        at = next((number for number, line in enumerate(body) if returns in line), None)
        guard = ""
        if at is not None and body[at + 1].lstrip().startswith("if "):  # it is kept, where the step was made
            guard = body.pop(at + 1)
        if at is not None:
            result, _, value = body[at + 1].strip(" ").partition(" = ")  # a name that is kept is another now
            if guard and not re.fullmatch(r"[\w.]+", result):
                raise _refused(self.function, f"some of what {self.function.name}() returns is kept, and some is not")
            body[at : at + 2] = [f"{deep}return {value}"]
        ours = list(ours)
        own_keeper = any(re.match(rf"\s*{ours[-1]} = ", line) for line in body)
        for name, here in self.names.items() if own_keeper else ():  # what it keeps it keeps by its own name
            kept = re.compile(rf"\b({ours[-1]}\.|){here}(?=={here}\b)|\b({ours[-1]}\.){here}\b")
            body = [kept.sub(rf"\g<1>\g<2>{name}", line) for line in body]
        own = _indent(self.was.lines[self.function.body[0].lineno - 1])
        body = [own + line[len(deep) :] if line.startswith(deep) else line for line in body]
        back = {here: name for name, here in self.names.items()}
        body = renamed("".join(body), own, back).splitlines(keepends=True)
        tree = ast.parse("def f():\n" + "".join(f" {line}" for line in body))
        made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        given = "".join(f", {name}" for name in ours if name in names_in(tree) - made)
        body = [line for each in body for line in _shared_again(self.function, each, names_in(tree))]
        if is_amid(self.was, self.call):
            lines[begin:] = self._called_amid(given, changed, lines[end + 1 :])
        elif guard:
            free = self._free()
            again = f"{deep}{guard.strip()}\n{_indent(guard)}    {result} = {free}\n"
            lines[begin : end + 1] = [*self._called(given, changed, deep, free), again]
        else:
            lines[begin : end + 1] = self._called(given, changed, deep, result)
        at = next(number for number, line in enumerate(lines) if defined in line)
        lines[at : at + 1] = [*_head(self.was, self.function, given), *body]
        text = "".join(lines)
        if outside := self._spoken_outside(text, made.intersection(ours)):
            why = f"what {self.function.name}() remembers is also asked for elsewhere (`{outside}`)"
            raise _refused(self.function, why, "return it, and give it a name where the function is called")
        if not self._fits(text, given.count(",")):  # never a wrong diff
            raise _refused(self.function, f"{self.function.name}() cannot be given more arguments here")
        return text

    def _spoken_outside(self, text: str, made: set[str]) -> str:
        """Names of ours that the function makes, and something else speaks of; "" if nothing does."""
        tree = ast.parse(text)
        inside = next(each for each in tree.body if getattr(each, "name", "") == self.function.name)
        own = {(node, name) for node in ast.walk(inside) for name in made}
        for each in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            given = {part.arg for part in ast.walk(each.args) if isinstance(part, ast.arg)} & made
            own |= {(node, name) for node in ast.walk(each) for name in given}
        spoken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and (node, node.id) not in own}
        return min(made & spoken, default="")

    def _fits(self, text: str, more: int) -> bool:
        """Whether it is Python, and function and call have so many more arguments."""
        try:
            every = list(ast.walk(ast.parse(text)))
        except SyntaxError:
            return False
        name, was = self.function.name, self.call
        calls = [each for each in every if isinstance(each, ast.Call) and _is_name(each.func, name)]
        made = [each.args for each in every if isinstance(each, ast.FunctionDef) and each.name == name]
        counts = [len(each.args) + len(each.keywords) for each in calls] + [count_of(each) for each in made]
        return counts == [len(was.args) + len(was.keywords) + more, count_of(self.function.args) + more]

    def refusal(self, error: CannotConvert) -> CannotConvert:
        """In the words of the script as it was."""
        line = self.lines[min(max(error.line, 1), len(self.lines)) - 1]
        return CannotConvert(self._in_words(error.why), line, self._in_words(error.do))

    def _changed(self, given: dict[str, str]) -> list[tuple[ast.expr, str]]:
        """Arguments that the call must be given in other words: what is kept is spoken of as such."""
        other = {here: text for here, text in given.items() if text != self.given[here]}
        values = [*self.call.args, *(word.value for word in self.call.keywords)]
        found = [
            (value, text)
            for here, text in other.items()
            for value in values
            if self.was.text(value) == self.given[here]
        ]
        if {text for _, text in found} != {*other.values()} or any(each.lineno != each.end_lineno for each, _ in found):
            raise _refused(self.function, f"what {self.function.name}() is given is kept, and made in its call")
        return found

    def _call_lines(self, given: str, changed: list[tuple[ast.expr, str]]) -> list[str]:
        """Of the statement with the call: with more arguments, and with those that changed."""
        statement, call, args = statement_of(self.was, self.call), self.call, self.function.args
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        lines = list(self.was.lines[first - 1 : last])
        if call.keywords or args.kwonlyargs or len(call.args) < len(args.posonlyargs) + len(args.args):
            given = re.sub(r"(\w+)", r"\1=\1", given)  # by name: some are left out, or are by name, too
        said = [*call.args, *(word.value for word in call.keywords)]
        _insert(lines, first, said, given, (call.end_lineno or 0, (call.end_col_offset or 0) - 1))
        for value, text in sorted(changed, key=lambda each: (each[0].lineno, each[0].col_offset), reverse=True):
            raw = lines[value.lineno - first].encode()
            raw = raw[: value.col_offset] + text.encode() + raw[value.end_col_offset :]
            lines[value.lineno - first] = raw.decode()
        return lines

    def _called_amid(self, given: str, changed: list[tuple[ast.expr, str]], after: list[str]) -> list[str]:
        """In the line that asks for what it returns; by a name, where that line is under a condition by now."""
        name, call = returned_by(self.function), self._call_text(given, changed)
        if name in after[0]:
            return [after[0].replace(name, call), *after[1:]]
        free = self._free()
        after = [line.replace(name, free) for line in after]
        return [f"{_indent(after[0])}{free} = {call}\n", *after]

    def _free(self) -> str:
        """A name for what it returns."""
        return next((each for each in ("value", "result") if each not in self.was.names), returned_by(self.function))

    def _call_text(self, given: str, changed: list[tuple[ast.expr, str]]) -> str:
        """The call alone, which is in one line."""
        raw, was = (
            each[0].encode() for each in (self._call_lines(given, changed), self.was.lines[self.call.lineno - 1 :])
        )
        return raw[self.call.col_offset : (self.call.end_col_offset or 0) + len(raw) - len(was)].decode()

    def _called(self, given: str, changed: list[tuple[ast.expr, str]], indent: str, result: str) -> list[str]:
        """The call, as deep as this; what it returns goes to `result`."""
        lines, statement = self._call_lines(given, changed), statement_of(self.was, self.call)
        own = _indent(lines[0])
        if (target := target_of(statement)) is not None:
            begins = self.was.text(target)
            lines[0] = own + result + lines[0][len(own) + len(begins) :]
        return [indent + line[len(own) :] if line.startswith(own) else line for line in lines]

    def _in_words(self, text: str) -> str:
        back = {here: name for name, here in self.names.items()}
        back[returned_by(self.function)] = f"{self.function.name}()"
        quoted = re.compile(r"`[^`]*`")
        return quoted.sub(lambda found: re.sub(r"\w+", lambda word: back.get(word[0], word[0]), found[0]), text)


def flat(script: Script) -> Flat | None:
    """None if there is no such function; CannotConvert if there is one that cannot be looked into."""
    found = function_of(script)
    if found is None:
        return None
    function, call = found
    try:
        _refuse_odd(script, function, call)
        given, names = _names(script, function, call)
    except CannotConvert:
        if isinstance(script.parents[statement_of(script, call)], ast.For):
            raise
        return None  # all of the loop is in it, and is looked at there
    statement, body = statement_of(script, call), _body(function)
    deep = _indent(script.lines[statement.lineno - 1])
    own = _indent(script.lines[body[0].lineno - 1])
    first, last = body[0].lineno, function.end_lineno or function.lineno
    text = "".join(script.lines[first - 1 : last])
    text = renamed(text if text.endswith("\n") else f"{text}\n", own, names)
    inner = [deep + line[len(own) :] if line.startswith(own) else line for line in text.splitlines(keepends=True)]
    for each in shared_names(function):
        inner[each.lineno - first] = f"{deep}pass  {mark(function, SHARED)} {', '.join(each.names)}\n"
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(script.lines, 1):
        if number == function.lineno:
            lines.append((number, f"{mark(function, DEFINED)}\n"))
        if function.lineno <= number <= last:
            continue
        if number == statement.lineno:
            lines.append((number, f"{deep}pass  {mark(function, BEGINS)}\n"))
            lines += [(number, f"{deep}{name} = {value}  {mark(function, GIVEN)}\n") for name, value in given.items()]
            lines += with_result(script, function, call, [(first + at, each) for at, each in enumerate(inner)], deep)
            lines.append((number, f"{deep}pass  {mark(function, ENDS)}\n"))
            if is_amid(script, call):
                lines.append((number, line.replace(script.text(call), returned_by(function))))
        if not statement.lineno <= number <= (statement.end_lineno or statement.lineno):
            lines.append((number, line))
    source = "".join(line for _, line in lines)
    try:
        made = Script(script.path, source)
    except Exception as error:  # never a wrong diff
        raise _refused(function, f"{function.name}() cannot be looked into") from error
    numbers = tuple(number for number, _ in lines)
    return Flat(script=made, lines=numbers, function=function, call=call, was=script, names=names, given=given)


def _refuse_odd(script: Script, function: ast.FunctionDef, call: ast.Call) -> None:
    inside = [node for each in function.body for node in ast.walk(each)]
    returns = [node for node in inside if isinstance(node, ast.Return)]
    shared = [node for node in inside if isinstance(node, ast.Global)]
    known = shared == shared_names(function) and (not shared or isinstance(script.scope_of(call), ast.Module))
    if any(isinstance(node, (*DEEPER, *LEAVES)) for node in inside) or function.decorator_list or not known:
        raise _refused(function, f"{function.name}() is more than a plain function around the loop")
    if any(node is not function.body[-1] for node in returns):
        line = next(node.lineno for node in returns if node is not function.body[-1])
        raise CannotConvert(f"`return` is amid {function.name}()", line, "one `return`, at its end")
    if not is_plain(script, function, call):
        raise _refused(
            call, f"what {function.name}() returns is used amid an expression", "give it a name: a line `loss = ...`"
        )
    for text in long_texts(script, function):
        if text not in _texts(function):
            raise CannotConvert("a text of several lines is in the function of the loop", text.lineno, "write it above")


def _names(script: Script, function: ast.FunctionDef, call: ast.Call) -> tuple[dict[str, str], dict[str, str]]:
    """Lines that give arguments their values; and names of the function that are others where it is called."""
    args = function.args
    names = [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    values = _defaults(args) | dict(zip(names, call.args, strict=False))
    values |= {word.arg or "": word.value for word in call.keywords}
    starred = args.vararg or args.kwarg or any(isinstance(each, ast.Starred) for each in call.args)
    if starred or "" in values or len(call.args) > len(args.posonlyargs) + len(args.args) or {*values} != {*names}:
        raise _refused(call, f"{function.name}() is not called with all of its arguments, each by itself")
    bound = {
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    bound -= {name for each in shared_names(function) for name in each.names}
    scope = script.scope_of(call)
    around = {node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and script.scope_of(node) is scope}
    spoken = {node.id for each in function.body for node in ast.walk(each) if isinstance(node, ast.Name)}
    free = spoken - bound - {*names}
    made = {
        node.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and script.scope_of(node) is scope
    }
    if not isinstance(scope, ast.Module) and (shadowed := free & made):
        raise _refused(function, f"`{min(shadowed)}` is another in {function.name}() than where it is called")
    given, other = dict[str, str](), _returned(script, function, call, bound - {*names}, spoken)
    for name in sorted(bound - {*names} - {*other}):
        if name in around:
            other[name] = f"{name}_of_{function.name}"
    for name, value in values.items():
        here = value.id if isinstance(value, ast.Name) and name in spoken - bound else ""
        if here == name:
            continue
        if here and here not in spoken | {*names} | {*other.values()}:
            other[name] = here
            continue
        other[name] = f"{name}_of_{function.name}"
        given[other[name]] = script.text(value)
    other = {name: here for name, here in other.items() if name != here}
    if len({*other.values()}) != len(other):
        raise _refused(call, f"{function.name}() is given the same twice")
    return given, other


def _returned(
    script: Script, function: ast.FunctionDef, call: ast.Call, own: set[str], spoken: set[str]
) -> dict[str, str]:
    """Names of its own that it returns, and what they are called where they come to."""
    last, target = function.body[-1], target_of(statement_of(script, call))
    if not makes(script, function) or not isinstance(last, ast.Return) or target is None:
        return {}
    values = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    if len(values) != len(targets):
        return {}
    pairs = [
        (one.id, other.id)
        for one, other in zip(values, targets, strict=True)
        if isinstance(one, ast.Name) and isinstance(other, ast.Name)
    ]
    return {one: other for one, other in pairs if one in own and (other == one or other not in spoken)}


def _defaults(args: ast.arguments) -> dict[str, ast.expr]:
    """Numbers and texts that arguments have where a call leaves them out."""
    plain = [*args.posonlyargs, *args.args]
    last = plain[len(plain) - len(args.defaults) :]
    pairs = [*zip(last, args.defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return {each.arg: value for each, value in pairs if isinstance(value, ast.Constant)}


def _shared_again(function: ast.FunctionDef, line: str, spoken: set[str]) -> list[str]:
    """`global`, for those that are still spoken of: what is kept is not."""
    before, found, names = line.partition(f"pass  {mark(function, SHARED)}")
    left = [name for name in names.strip().split(", ") if name in spoken]
    if not found:
        return [line]
    return [f"{before}global {', '.join(left)}\n"] if left else []


def _head(script: Script, function: ast.FunctionDef, given: str) -> list[str]:
    """`def`, with more arguments, and what is said of it."""
    lines = list(script.lines[function.lineno - 1 : _body(function)[0].lineno - 1])
    args = function.args
    said: list[ast.arg | ast.expr] = [*args.posonlyargs, *args.args, *args.kwonlyargs, *args.defaults]
    said += [each for each in args.kw_defaults if each is not None]
    if args.defaults and given:
        given = re.sub(r"(\w+)", r"\1=None", given)
    _insert(lines, function.lineno, said, given, (function.lineno, len(f"{lines[0].split('(')[0]}(".encode())))
    return lines


def _insert(
    lines: list[str], first: int, said: Sequence[ast.arg | ast.expr], given: str, empty: tuple[int, int]
) -> None:
    """More arguments after the last of them, or at `empty`; lines are counted from `first`."""
    row, column = max(((each.end_lineno or 0, each.end_col_offset or 0) for each in said), default=empty)
    raw = lines[row - first].encode()
    lines[row - first] = (raw[:column] + (given if said else given[2:]).encode() + raw[column:]).decode()


def _body(function: ast.FunctionDef) -> list[ast.stmt]:
    """Without what is said of it."""
    texts = _texts(function)
    return function.body[1:] if texts and len(function.body) > 1 else function.body


def _texts(function: ast.FunctionDef) -> list[ast.expr]:
    first = function.body[0]
    said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return [first.value] if said and isinstance(first, ast.Expr) else []


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _refused(node: ast.stmt | ast.expr, why: str, do: str = "") -> CannotConvert:
    by_hand = (
        "make the session around all epochs: `for epoch in s.epochs()`, in it `for batch in s`, and `s.step(loss)`"
    )
    return CannotConvert(why, node.lineno, f"{do}; or {by_hand}" if do else by_hand)

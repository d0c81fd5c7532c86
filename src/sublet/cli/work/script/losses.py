"""How a loss grows with the samples that it is of: not at all (a mean), with their number (a sum), or nobody knows.

A worker has a part of the batch. Means of parts are weighted by their sizes, and sums are added up; a loss that is
partly one and partly the other, or a sum with a penalty on weights, would come out otherwise at another width.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import Enum

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import Function
from sublet.cli.work.script.reading import Scope, is_method, names_in

__all__ = ["Grade", "Loss", "loss_of"]

DEEPEST = 6  # functions in functions
COUNTS = ("size", "numel", "nelement", "shape", "__len__")
LOSSES = ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")


class Grade(Enum):
    """Of a value, by the samples of the batch in it."""

    NUMBER = "written down"
    NONE = "of no sample"
    MEAN = "a mean over samples"
    SUM = "a sum over samples"
    EACH = "one for each sample"
    COUNT = "how many samples"
    ODD = "something else"


Known = dict[str, Grade]
BATCH = (Grade.MEAN, Grade.SUM, Grade.EACH, Grade.ODD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Of a training loop."""

    grade: Grade
    sums: tuple[int, ...] = ()  # lines where samples are added up, or counted, in it
    penalty: bool = False  # of weights, beside a sum


def loss_of(effects: Effects, inner: ast.For | ast.While, losses: list[ast.expr]) -> Loss:
    """What all that goes backward is, at its worst."""
    grader = _Grader(effects, effects.script.scope_of(inner))
    known: Known = dict.fromkeys(names_in(inner.target), Grade.EACH) if isinstance(inner, ast.For) else {}
    if isinstance(inner, ast.For) and isinstance(inner.iter, ast.Call) and isinstance(inner.target, ast.Tuple):
        known |= dict.fromkeys(names_in(inner.target.elts[0]), Grade.NUMBER)  # enumerate
    grades: set[Grade] = set()
    grader.run(inner.body, known, losses, grades)
    found = grades - {Grade.NONE, Grade.NUMBER} or {Grade.MEAN}
    return Loss(
        grade=found.pop() if len(found) == 1 else Grade.ODD,
        sums=tuple(sorted(grader.sums)),
        penalty=grader.penalty,
    )


class _Grader:
    def __init__(self, effects: Effects, scope: Scope) -> None:
        self._effects, self._script, self._scope = effects, effects.script, scope
        self.sums: set[int] = set()
        self.penalty = False
        self._depth = 0

    def run(self, body: list[ast.stmt], known: Known, wanted: list[ast.expr], found: set[Grade]) -> None:
        """Statement by statement; the grades of what is wanted, where it stands, and of what is returned."""
        for statement in body:
            for block in ("body", "orelse", "finalbody"):
                if isinstance(statement, ast.For) and block == "body":
                    drawn = self.grade(statement.iter, known)
                    known |= dict.fromkeys(names_in(statement.target), drawn)
                if not isinstance(statement, Function | ast.ClassDef) and (inner := getattr(statement, block, None)):
                    self.run(inner, known, wanted, found)
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    self._bind(target, statement.value, known)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self._bind(statement.target, statement.value, known)
            elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                before = known.get(statement.target.id, Grade.NONE)
                known[statement.target.id] = self._combined(statement, before, self.grade(statement.value, known))
            elif isinstance(statement, ast.Return) and statement.value is not None:
                found.add(self.grade(statement.value, known))
            inside = {id(node) for node in ast.walk(statement)} if isinstance(statement, ast.Expr) else set()
            for each in wanted:
                if id(each) in inside:
                    found.add(self.grade(each, known))

    def _bind(self, target: ast.expr, value: ast.expr, known: Known) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for name, grade in [
                (one, self.grade(other, known)) for one, other in zip(target.elts, value.elts, strict=True)
            ]:
                known |= dict.fromkeys(names_in(name), grade)
        elif isinstance(target, ast.Name | ast.Tuple | ast.List):
            known |= dict.fromkeys(names_in(target), self.grade(value, known))

    def grade(self, node: ast.expr, known: Known) -> Grade:
        """Of one expression."""
        match node:
            case ast.Constant():
                return Grade.NUMBER
            case ast.Name():
                return known.get(node.id, Grade.NONE)
            case ast.Attribute(attr="shape") if self.grade(node.value, known) is Grade.EACH:
                return Grade.COUNT
            case ast.Attribute() | ast.Subscript() | ast.Starred():
                return self.grade(node.value, known)
            case ast.UnaryOp():
                return self.grade(node.operand, known)
            case ast.BinOp():
                return self._combined(node, self.grade(node.left, known), self.grade(node.right, known))
            case ast.IfExp():
                both = {self.grade(node.body, known), self.grade(node.orelse, known)}
                return both.pop() if len(both) == 1 else Grade.ODD
            case ast.Compare() | ast.BoolOp() | ast.JoinedStr():
                return Grade.NONE
            case ast.Tuple() | ast.List():
                return _worst([self.grade(each, known) for each in node.elts])
            case ast.ListComp() | ast.GeneratorExp():
                inner = dict(known)
                for part in node.generators:
                    inner |= dict.fromkeys(names_in(part.target), self.grade(part.iter, inner))
                return self.grade(node.elt, inner)
            case ast.Call():
                return self._of_call(node, known)
            case _:
                pass
        return _worst([self.grade(each, known) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)])

    def _combined(self, node: ast.BinOp | ast.AugAssign, left: Grade, right: Grade) -> Grade:
        found = self._by_algebra(node.op, left, right)
        if found is Grade.ODD and Grade.ODD not in (left, right):
            self.sums.add(node.lineno)  # part of it grows with the samples
        return found

    def _by_algebra(self, op: ast.operator, left: Grade, right: Grade) -> Grade:
        both = {left, right}
        if Grade.ODD in both:
            return Grade.ODD
        if isinstance(op, ast.Add | ast.Sub):
            if both == {Grade.SUM, Grade.NONE}:
                self.penalty = True
                return Grade.ODD
            both -= {Grade.NUMBER} if len(both) > 1 else set()
            both -= {Grade.NONE} if len(both) > 1 else set()
            return (
                both.pop()
                if len(both) == 1
                else Grade.EACH
                if Grade.EACH in both and Grade.SUM not in both
                else Grade.ODD
            )
        if isinstance(op, ast.Div) and right is Grade.COUNT:
            return Grade.MEAN if left is Grade.SUM else Grade.ODD if left in BATCH else Grade.NONE
        if Grade.COUNT in both:
            return Grade.ODD if both & set(BATCH) else Grade.COUNT
        if Grade.EACH in both:
            return Grade.ODD if Grade.SUM in both else Grade.EACH
        if Grade.SUM in both:
            scaled = isinstance(op, ast.Mult | ast.Div) and left in (Grade.SUM, Grade.NONE, Grade.NUMBER)
            return (
                Grade.SUM
                if scaled and len(both) > 1 and not (isinstance(op, ast.Div) and right is Grade.SUM)
                else Grade.ODD
            )
        return Grade.MEAN if Grade.MEAN in both else Grade.NONE if Grade.NONE in both else Grade.NUMBER

    # ------------------------------------------------------------------------------------------- calls

    def _of_call(self, call: ast.Call, known: Known) -> Grade:
        full, func = self._script.full_name(call.func), call.func
        if full == "torch.autograd.grad":  # a sum over samples is how those of all of them are asked for at once
            sums = set(self.sums)
            worst = _worst([self.grade(each, known) for each in call.args])
            self.sums = sums
            return Grade.EACH if worst in BATCH else Grade.NONE
        given = [self.grade(each, known) for each in (*call.args, *(word.value for word in call.keywords))]
        worst = _worst(given)
        if isinstance(func, ast.Name) and func.id in self._effects.functions:
            return self._of_function(self._effects.functions[func.id], call, known)
        if full == "sum":
            drawn = call.args[0] if call.args else None
            each = isinstance(drawn, ast.Name) or (
                isinstance(drawn, ast.GeneratorExp | ast.ListComp) and self._over_samples(drawn, known)
            )
            return self._summed(call, worst) if each else worst
        if full == "len" or is_method(call, *COUNTS):
            counted = self.grade(func.value, known) if isinstance(func, ast.Attribute) else worst
            return Grade.COUNT if counted is Grade.EACH else Grade.NUMBER
        if full.startswith("torch.") and full.rpartition(".")[2] in ("sum", "mean"):
            return self._reduced(call, full.rpartition(".")[2], given[0] if given else Grade.NONE, call.args[1:])
        if full.startswith("torch.nn.functional."):
            last = full.rpartition(".")[2]
            return self._by_reduction(call, call, worst) if last in LOSSES or last.endswith("_loss") else _over(worst)
        if isinstance(func, ast.Attribute) and not self._effects.is_imported(func.value):
            return self._of_method(call, func, worst, known)
        if isinstance(func, ast.Name):
            return self._of_object(func.id, call, worst, known)
        return _over(worst)

    def _of_method(self, call: ast.Call, func: ast.Attribute, worst: Grade, known: Known) -> Grade:
        whose = self.grade(func.value, known)
        if func.attr in ("sum", "mean"):
            return self._reduced(call, func.attr, whose, call.args)
        if func.attr in ("item", "tolist"):
            return Grade.NUMBER
        made = self._effects.class_of(func.value.id, self._scope) if isinstance(func.value, ast.Name) else None
        method = (
            next((each for each in made.body if isinstance(each, Function) and each.name == func.attr), None)
            if made
            else None
        )
        if method is not None:
            return self._of_function(method, call, known, bound=True)
        return whose if worst in (Grade.NONE, Grade.NUMBER) else _over(_worst([whose, worst]))

    def _of_object(self, name: str, call: ast.Call, worst: Grade, known: Known) -> Grade:
        """`criterion(...)`, `model(...)`."""
        for value in self._effects.given(name, self._scope):
            full = self._script.full_name(value.func) if isinstance(value, ast.Call) else ""
            if isinstance(value, ast.Call) and full.startswith("torch.nn.") and full.endswith("Loss"):
                return self._by_reduction(value, call, worst)
            if isinstance(value, ast.Call) and full == "functools.partial":
                return self._by_reduction(value, call, worst)
            if isinstance(value, ast.Lambda):
                inner = known | dict(
                    zip([each.arg for each in value.args.args], [self.grade(a, known) for a in call.args], strict=False)
                )
                return self.grade(value.body, inner)
        made = self._effects.class_of(name, self._scope)
        forward = (
            next((e for e in made.body if isinstance(e, Function) and e.name in ("forward", "__call__")), None)
            if made
            else None
        )
        if forward is not None and "Loss" in made.name:  # type: ignore[union-attr]  # it has a method
            return self._of_function(forward, call, known, bound=True)
        return _over(worst)

    def _of_function(self, function: Function, call: ast.Call, known: Known, *, bound: bool = False) -> Grade:
        if self._depth >= DEEPEST:
            return Grade.ODD
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][bound:]
        inner = {} if bound else {name: grade for name, grade in known.items() if name not in names}
        inner |= dict(zip(names, (self.grade(each, known) for each in call.args), strict=False))
        inner |= {word.arg: self.grade(word.value, known) for word in call.keywords if word.arg}
        found: set[Grade] = set()
        self._depth += 1
        self.run(function.body, inner, [], found)
        self._depth -= 1
        return (
            found.pop()
            if len(found) == 1
            else _worst(list(found))
            if found <= {Grade.NONE, Grade.NUMBER}
            else Grade.ODD
        )

    def _by_reduction(self, said: ast.Call, call: ast.Call, worst: Grade) -> Grade:
        words = {word.arg: word.value for word in said.keywords}
        if worst not in BATCH:
            return Grade.NONE
        averaged, reduction = words.get("size_average"), words.get("reduction")
        if isinstance(averaged, ast.Constant) and averaged.value is False:
            return self._summed(call, Grade.EACH)
        if reduction is None:
            return Grade.MEAN
        kinds = {"sum": Grade.SUM, "mean": Grade.MEAN, "batchmean": Grade.MEAN, "none": Grade.EACH}
        found = kinds.get(str(reduction.value), Grade.ODD) if isinstance(reduction, ast.Constant) else Grade.ODD
        if found in (Grade.SUM, Grade.ODD):
            self.sums.add(said.lineno)
        return found

    def _reduced(self, call: ast.Call, how: str, whose: Grade, places: list[ast.expr]) -> Grade:
        words = {word.arg: word.value for word in call.keywords}
        place = places[0] if places else words.get("dim", words.get("axis"))
        if place is None:
            return self._summed(call, whose) if how == "sum" else Grade.MEAN if whose is Grade.EACH else whose
        if self._script.text(place) in ("0", "(0,)", "[0]") and whose is Grade.EACH:
            return self._summed(call, whose) if how == "sum" else Grade.MEAN
        return whose

    def _summed(self, call: ast.Call, whose: Grade) -> Grade:
        if whose not in BATCH:
            return Grade.NONE
        if whose is not Grade.MEAN:
            self.sums.add(call.lineno)
        return Grade.SUM if whose is Grade.EACH else whose

    def _over_samples(self, drawn: ast.GeneratorExp | ast.ListComp, known: Known) -> bool:
        return any(self.grade(part.iter, known) is Grade.EACH for part in drawn.generators)


def _worst(grades: list[Grade]) -> Grade:
    order = list(Grade)
    kinds = set(grades) - {Grade.NUMBER, Grade.NONE, Grade.COUNT}
    if len(kinds) > 1:
        return Grade.EACH if Grade.SUM not in kinds and Grade.ODD not in kinds else Grade.ODD
    return max(grades, key=order.index, default=Grade.NONE) if not kinds else kinds.pop()


def _over(grade: Grade) -> Grade:
    """Of a function that is no sum: of one it is something else."""
    return Grade.ODD if grade is Grade.SUM else Grade.NONE if grade is Grade.COUNT else grade

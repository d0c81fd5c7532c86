"""What each value of a loop is, by the samples of the batch in it: statement by statement, and call by call."""

from __future__ import annotations

import ast

from sublet.cli.work.script.calls import READING
from sublet.cli.work.script.criteria import is_criterion, kept_as, method_of
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.grades import BATCH, COUNTS, ODDS, ROWS, WHY, Grade, by_operator, over, slope_of, worst
from sublet.cli.work.script.kinds import Function
from sublet.cli.work.script.mixing import (
    CHOOSING,
    HALVING,
    LINEAR,
    MIXING,
    MOVING,
    PAIRING,
    at_least,
    crosses,
    divides_by_weights,
    halves,
    moved,
    place_of,
    turned,
)
from sublet.cli.work.script.reading import Scope, is_method, names_in
from sublet.cli.work.script.sizes import compared, fits, of_size, sized_in, sizes_under
from sublet.cli.work.script.tensors import is_beyond_first, is_tensor, number_of
from sublet.cli.work.script.ways import goes_on, met, ways_of

__all__ = ["Grader", "Known"]

DEEPEST = 6  # functions in functions
SIZES = ("size", "numel", "nelement", "shape", "__len__")
LOSSES = ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")


Known = dict[str, Grade]


class Grader:
    """Of one scope; it notes what it finds on its way."""

    def __init__(self, effects: Effects, scope: Scope) -> None:
        self._effects, self._script, self._scope = effects, effects.script, scope
        self.sums: set[int] = set()
        self.penalty = False
        self.where: ast.For | ast.While | None = None  # the loop that it is of
        self.drawn: set[str] = set()  # names of tensors that the loader gives
        self.batches: set[str] = set()  # names of all that the loader gives: a tuple, it may be
        self.lines: dict[Grade, int] = {}  # where it is first seen that a value is odd
        self._depth = 0

    def run(self, body: list[ast.stmt], known: Known, wanted: list[ast.expr], found: set[Grade]) -> None:
        """Statement by statement; the grades of what is wanted, where it stands, and of what is returned."""
        for statement in body:
            if isinstance(statement, ast.For):
                known |= dict.fromkeys(names_in(statement.target), self.grade(statement.iter, known))
            for ways in ways_of(statement):
                ends: list[Known] = []
                for way in ways:
                    ends.append(dict(known))
                    self.run(way, ends[-1], wanted, found)
                known |= met(known, [end for way, end in zip(ways, ends, strict=True) if goes_on(way)])
            if isinstance(statement, ast.If) and self.grade(statement.test, known) is Grade.SIZED:
                self._chosen_by_size(statement, known, found)
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
            elif isinstance(statement, ast.Expr) and is_method(statement.value, "append", "add", "update"):
                for each in statement.value.args:
                    self._put_into(statement.value.func.value, each, known)
            inside = {id(node) for node in ast.walk(statement)} if isinstance(statement, ast.Expr) else set()
            for each in wanted:
                if id(each) in inside:
                    found.add(self.grade(each, known))

    def _chosen_by_size(self, statement: ast.If, known: Known, found: set[Grade]) -> None:
        """What is given a value, or returned, under a condition on how many samples there are."""
        self._noted(Grade.SIZED, statement)
        for names, value in sizes_under(statement):
            if not fits(value, sized=value is not None and self._counts(value, known)):
                known |= dict.fromkeys(names, Grade.SIZED)
        if any(isinstance(node, ast.Return) and node.value for node in ast.walk(statement)):
            found.add(Grade.SIZED)

    def _counts(self, value: ast.expr, known: Known) -> bool:
        return any(isinstance(each, ast.expr) and self.grade(each, known) in COUNTS for each in ast.walk(value))

    def _bind(self, target: ast.expr, value: ast.expr, known: Known) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for name, grade in [
                (one, self.grade(other, known)) for one, other in zip(target.elts, value.elts, strict=True)
            ]:
                known |= dict.fromkeys(names_in(name), grade)
        elif isinstance(target, ast.Tuple) and target.elts and self.grade(value, known) in COUNTS:
            known |= dict.fromkeys(names_in(target), Grade.NONE)  # `n, channels, *size = x.shape`
            known |= dict.fromkeys(names_in(target.elts[0]), Grade.COUNT)
        elif isinstance(target, ast.Name | ast.Tuple | ast.List):
            known |= dict.fromkeys(names_in(target), self.grade(value, known))
        elif isinstance(target, ast.Subscript):
            self._put_into(target.value, value, known)

    def _put_into(self, whole: ast.expr, value: ast.expr, known: Known) -> None:
        if isinstance(whole, ast.Name):
            known[whole.id] = worst([known.get(whole.id, Grade.NUMBER), self.grade(value, known)])

    def grade(self, node: ast.expr, known: Known) -> Grade:
        """Of one expression."""
        match node:
            case ast.Constant():
                return Grade.NUMBER
            case ast.Name():
                return known.get(node.id, Grade.NONE)
            case ast.Attribute(attr="shape") if (whose := self.grade(node.value, known)) is Grade.EACH or whose in ODDS:
                return Grade.COUNT if whose is Grade.EACH else Grade.NONE
            case ast.Attribute(attr="T" | "mT" | "H") if self.grade(node.value, known) in ROWS:
                return turned(self.grade(node.value, known))
            case ast.Subscript():
                return self._of_part(node, known)
            case ast.Attribute() | ast.Starred():
                return self.grade(node.value, known)
            case ast.UnaryOp():
                return self.grade(node.operand, known)
            case ast.BinOp():
                right = at_least(self._script, node.right) if isinstance(node.op, ast.Div) else node.right
                return self._combined(node, self.grade(node.left, known), self.grade(right, known))
            case ast.IfExp():
                both = {self.grade(node.body, known), self.grade(node.orelse, known)}
                if self.grade(node.test, known) is Grade.SIZED:
                    return self._noted(Grade.SIZED, node)
                return both.pop() if len(both) == 1 else worst([Grade.ODD, *both])
            case ast.Compare():
                sides = [each for each in (node.left, *node.comparators) if not self._is_of_fields(each)]
                return compared(node, [self.grade(each, known) for each in sides])
            case ast.BoolOp():
                sized = Grade.SIZED in {self.grade(each, known) for each in node.values}
                return Grade.SIZED if sized else Grade.NONE
            case ast.JoinedStr():
                return Grade.NONE
            case ast.Tuple() | ast.List():
                return worst([self.grade(each, known) for each in node.elts])
            case ast.ListComp() | ast.GeneratorExp():
                inner = dict(known)
                for part in node.generators:
                    inner |= dict.fromkeys(names_in(part.target), self.grade(part.iter, inner))
                return self.grade(node.elt, inner)
            case ast.Call():
                return self._of_call(node, known)
            case _:
                pass
        return worst([self.grade(each, known) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)])

    def _is_of_fields(self, node: ast.expr) -> bool:
        """`len(batch)` of what may be a tuple, or a dict."""
        given = node.args[0] if isinstance(node, ast.Call) and node.args else None
        return isinstance(given, ast.Name) and given.id in self.batches and self._script.text(node).startswith("len(")

    def _combined(self, node: ast.BinOp | ast.AugAssign, left: Grade, right: Grade) -> Grade:
        found = by_operator(node.op, left, right)
        if found in (Grade.ODD, Grade.SUM) and found not in (left, right):
            self.sums.add(node.lineno)  # part of it grows with the samples
            self.penalty |= isinstance(node.op, ast.Add | ast.Sub) and {left, right} == {Grade.SUM, Grade.NONE}
        return self._noted(found, node)

    def _noted(self, grade: Grade, node: ast.expr | ast.stmt) -> Grade:
        if grade in WHY:
            self.lines.setdefault(grade, node.lineno)
        return grade

    def _of_part(self, node: ast.Subscript, known: Known) -> Grade:
        """`rows[mask]`, `rows[:n]`: some of them; `table[labels]`: one for each."""
        whose = self.grade(node.value, known)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        first = parts[0] if parts else node.slice
        given = Grade.NONE if isinstance(first, ast.Slice) else self.grade(first, known)
        begins = first.lower if isinstance(first, ast.Slice) and first.lower is not None else first
        if whose in COUNTS and is_beyond_first(begins):
            return Grade.NONE
        if given is Grade.PLACES and whose in ROWS:
            return whose  # `rows[torch.arange(len(rows)), labels]`
        if whose in ROWS and given in ODDS:
            return self._noted(given, node)
        if number_of(first) is not None and whose in (Grade.EACH, Grade.SOME) and self._is_tensor(node.value):
            return self._noted(Grade.CHOSEN, node)
        if whose not in ROWS:
            return given if given in ROWS and whose not in BATCH else whose
        if isinstance(first, ast.Constant) and first.value is None and len(parts) > 1:
            return turned(whose)
        if isinstance(first, ast.Slice):
            ends = [each for each in (first.lower, first.upper, first.step) if each is not None]
            grades = {self.grade(each, known) for each in ends}
            batch = isinstance(node.value, ast.Name) and node.value.id in self.batches
            if grades <= {Grade.COUNT} or batch:
                return whose
            return self._noted(Grade.SIZED if grades & {*COUNTS, Grade.SIZED} else Grade.SOME, node)
        return self._noted(Grade.SOME, node) if given in ROWS else whose

    def _is_tensor(self, value: ast.expr) -> bool:
        return is_tensor(self._effects, value, self.where, self.drawn)

    # ------------------------------------------------------------------------------------------- calls

    def _of_call(self, call: ast.Call, known: Known) -> Grade:
        full, func = self._script.full_name(call.func), call.func
        if full == "torch.autograd.grad":  # a sum over samples is how those of all of them are asked for at once
            sums, words = set(self.sums), {word.arg: word.value for word in call.keywords}
            asked = [*call.args[:2], *(words[name] for name in ("outputs", "inputs") if name in words)]
            grades = [self.grade(each, known) for each in asked]
            self.sums = sums
            return self._noted(slope_of(grades), call)
        given = [self.grade(each, known) for each in (*call.args, *(word.value for word in call.keywords))]
        of_all = worst(given)
        own = isinstance(func, ast.Name) and func.id in self._effects.functions
        if not own and (sized := of_size(full, given)) is not None:
            return self._noted(sized, call)
        if isinstance(func, ast.Name) and func.id in self._effects.functions:
            return self._of_function(self._effects.functions[func.id], call, known)
        if full == "sum":
            drawn = call.args[0] if call.args else None
            each = isinstance(drawn, ast.Name) or (
                isinstance(drawn, ast.GeneratorExp | ast.ListComp) and self._over_samples(drawn, known)
            )
            return self._summed(call, of_all) if each else of_all
        if full == "len" or is_method(call, *SIZES):
            counted = self.grade(func.value, known) if isinstance(func, ast.Attribute) else of_all
            if counted is Grade.EACH and call.args and is_beyond_first(call.args[0]):
                return Grade.NONE
            return {Grade.EACH: Grade.COUNT, Grade.SOME: Grade.SUM}.get(counted, Grade.NUMBER)
        if full.startswith("torch.") and full.rpartition(".")[2] in ("sum", "mean"):
            return self._reduced(call, full.rpartition(".")[2], given[0] if given else Grade.NONE, call.args[1:])
        last = full.rpartition(".")[2]
        if full.startswith("torch.nn.functional.") and (last in LOSSES or last.endswith("_loss")):
            return self._by_reduction(call, call, of_all)
        if isinstance(func, ast.Attribute) and not self._effects.is_imported(func.value):
            return self._of_method(call, func, of_all, known)
        if isinstance(func, ast.Name) and not full.startswith(("torch.", "math.", "numpy.")):
            plain = full in ("max", "min", "abs", "pow", "round")
            return (
                self._transformed(call, full, given, of_all) if plain else self._of_object(func.id, call, of_all, known)
            )
        if full.startswith(("torch.", "math.", "numpy.")):
            return self._transformed(call, last, given, of_all)
        return over(of_all)

    def _transformed(self, call: ast.Call, what: str, given: list[Grade], of_all: Grade) -> Grade:
        """By a function of torch, or a method of a tensor; `given`: the tensor first."""
        rows = [grade for grade in given if grade in ROWS]
        if what == "sign" and given[:1] == [Grade.SLOPE]:
            return Grade.EACH
        if Grade.SHARE in given and of_all in BATCH and what in ("mul", "multiply"):
            self.sums.add(call.lineno)
            return self._noted(Grade.DIVIDED if of_all in ROWS else Grade.ODD, call)
        if of_all is Grade.MEAN:
            return of_all if what in LINEAR else self._noted(Grade.CURVED, call)
        if of_all not in ROWS:
            return over(of_all)
        if Grade.MEAN in given and what not in LINEAR:
            return self._noted(Grade.PAIRED, call)
        if what in PAIRING or what == "einsum":
            aside = Grade.TURNED in rows or what not in ("matmul", "mm", "addmm")
            alone = what in ("cov", "corrcoef", "pdist", "bincount", "histc")
            paired = (crosses(call, given) if what == "einsum" else aside and len(rows) > 1) or alone
            return self._noted(Grade.PAIRED, call) if paired else of_all
        if what in MIXING and place_of(self._script, call) in ("", "0", "(0,)", "[0]") and len(rows) == 1:
            return self._noted(Grade.PAIRED if what in ("roll", "flip") else Grade.CHOSEN, call)
        if what in CHOOSING and place_of(self._script, call) != "1":
            return self._noted(Grade.SOME, call)
        if what in HALVING and halves(self._script, call):
            return self._noted(Grade.PLACES, call)
        if what in MOVING:
            return moved(self._script, call, what, of_all)
        if {Grade.EACH, Grade.TURNED} <= set(rows) and what not in ("cat", "stack"):
            return self._noted(Grade.PAIRED, call)
        return Grade.EACH if what == "squeeze" and of_all is Grade.TURNED else of_all

    def _of_method(self, call: ast.Call, func: ast.Attribute, of_all: Grade, known: Known) -> Grade:
        whose = self.grade(func.value, known)
        if func.attr in ("sum", "mean"):
            return self._reduced(call, func.attr, whose, call.args)
        if func.attr in ("values", "items"):  # of a dict
            return whose
        made = self._effects.class_of(func.value.id, self._scope) if isinstance(func.value, ast.Name) else None
        own, kept = kept_as(self._effects, func)
        if kept and (found := self._of_made(kept, func.attr, call, of_all, known)) is not None:
            return found
        method = method_of(made or own, func.attr)
        if method is not None:
            return self._of_function(method, call, known, bound=True)
        tensors = func.attr in READING or func.attr in MIXING or func.attr in PAIRING or func.attr in CHOOSING
        if tensors and whose in BATCH:
            given = [self.grade(each, known) for each in (*call.args, *(word.value for word in call.keywords))]
            return self._transformed(call, func.attr, [whose, *given], worst([whose, *given]))
        return whose if of_all in (Grade.NONE, Grade.NUMBER) else over(worst([whose, of_all]))

    def _of_object(self, name: str, call: ast.Call, of_all: Grade, known: Known) -> Grade:
        """`criterion(...)`, `model(...)`."""
        given = self._effects.given(name, self._scope)
        if (found := self._of_made(given, name, call, of_all, known)) is not None:
            return found
        forward = method_of(self._effects.class_of(name, self._scope), "forward", "__call__")
        if forward is not None and of_all is Grade.EACH and (seen := sized_in(self._script, forward)):
            return self._noted(*seen)
        return Grade.EACH if of_all is Grade.TURNED else over(of_all)

    def _of_made(self, given: list[ast.expr], name: str, call: ast.Call, of_all: Grade, known: Known) -> Grade | None:
        """Of a call of what is made so, if it is for a loss."""
        for value in given:
            full = self._script.full_name(value.func) if isinstance(value, ast.Call) else ""
            of_torch = full.startswith("torch.nn.") and full.endswith("Loss")
            if isinstance(value, ast.Call) and (of_torch or full == "functools.partial"):
                return self._by_reduction(value, call, of_all)
            if isinstance(value, ast.Lambda):
                inner = known | dict(
                    zip([each.arg for each in value.args.args], [self.grade(a, known) for a in call.args], strict=False)
                )
                return self.grade(value.body, inner)
        made = self._effects.made_by(given)
        forward = method_of(made, "forward", "__call__")
        if made is not None and forward is not None and is_criterion(self._effects, made, name, call):
            return self._of_function(forward, call, known, bound=True)
        return None

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
            else worst(found)
            if found <= {Grade.NONE, Grade.NUMBER}
            else worst([Grade.ODD, *found])
        )

    def _by_reduction(self, said: ast.Call, call: ast.Call, of_all: Grade) -> Grade:
        words = {word.arg: word.value for word in (*said.keywords, *call.keywords)}
        if of_all not in BATCH or of_all in ODDS:
            return of_all if of_all in ODDS else Grade.NONE
        if of_all in (Grade.MEAN, Grade.SUM):
            return self._noted(Grade.CURVED, call)
        rows = Grade.SOME if of_all is Grade.SOME else Grade.EACH
        averaged, reduction = words.get("size_average"), words.get("reduction")
        if isinstance(averaged, ast.Constant) and averaged.value is False:
            return self._summed(call, Grade.EACH)
        mean = self._noted(self._averaged(said, call, words, rows), call)
        if reduction is None:
            return mean
        kinds = {"sum": Grade.SUM, "mean": mean, "batchmean": mean, "none": rows}
        found = kinds.get(str(reduction.value), Grade.ODD) if isinstance(reduction, ast.Constant) else Grade.ODD
        if found in (Grade.SUM, Grade.ODD):
            self.sums.add(said.lineno)
        return found

    def _averaged(self, said: ast.Call, call: ast.Call, words: dict[str | None, ast.expr], rows: Grade) -> Grade:
        """What the mean of a loss of torch is divided by: samples, weights of their labels, labels that count."""
        name = self._script.full_name(said.func).rpartition(".")[2]
        ours = said.args[2:] if said is call else said.args
        weight = words.get("weight", ours[0] if ours else None)
        weighed = not isinstance(weight, ast.Constant | None)
        if rows is Grade.SOME or "ignore_index" in words:
            return Grade.PARTIAL
        return Grade.WEIGHED if weighed and divides_by_weights(name) else Grade.MEAN

    def _reduced(self, call: ast.Call, how: str, whose: Grade, places: list[ast.expr]) -> Grade:
        words = {word.arg: word.value for word in call.keywords}
        place = places[0] if places else words.get("dim", words.get("axis"))
        mean = self._noted(Grade.PARTIAL if whose is Grade.SOME else Grade.MEAN, call)
        if place is None:
            return self._summed(call, whose) if how == "sum" else mean if whose in ROWS else whose
        if whose is Grade.TURNED:
            return self._noted(Grade.PAIRED, call)
        if self._script.text(place) in ("0", "(0,)", "[0]") and whose in ROWS:
            return self._summed(call, whose) if how == "sum" else mean
        return whose

    def _summed(self, call: ast.Call, whose: Grade) -> Grade:
        if whose not in BATCH:
            return Grade.NONE
        if whose is not Grade.MEAN:
            self.sums.add(call.lineno)
        return Grade.SUM if whose in ROWS else whose

    def _over_samples(self, drawn: ast.GeneratorExp | ast.ListComp, known: Known) -> bool:
        return any(self.grade(part.iter, known) is Grade.EACH for part in drawn.generators)

"""Values that go by how many samples a batch has: a worker has a part of them, and would come to others.

A sum that is divided by `len(x)` is a mean, and `torch.zeros(len(x), 1)` is as long as the batch. But `1.0 if
len(x) == 8 else 0.1` is another value for 4 samples, and `torch.linspace(1, 2, len(x))` one for each place in a batch.
"""

from __future__ import annotations

import ast

from sublet.cli.work.script.grades import BATCH, COUNTS, ODDS, ROWS, Grade, worst
from sublet.cli.work.script.kinds import Function, bindings_in
from sublet.cli.work.script.mixing import HALVING, halves
from sublet.cli.work.script.reading import Script, is_method, names_in

__all__ = ["compared", "fits", "of_size", "sized_in", "sizes_under"]

PLACED = ("linspace", "logspace", "arange", "eye", "range", "tril_indices", "triu_indices", "hann_window")
SAME = ("float", "int", "tensor", "as_tensor", "abs", "Tensor", "FloatTensor")  # of a number, that number
FILLED = ("full", "full_like", "new_full")
NUMBERS = ("len", "int", "float", "max", "min", "round", "math.prod", "math.sqrt", "math.ceil", "math.floor")
SCALARS = ("math.", "numpy.", "min", "max", "pow", "round", "divmod")


def of_size(full: str, given: list[Grade]) -> Grade | None:
    """Of a function that is given how many samples there are, or what is made from that; None if it is no matter."""
    last, sizes = full.rpartition(".")[2], {grade for grade in given if grade in COUNTS or grade is Grade.SHARE}
    if not sizes:
        return None
    if last in FILLED:
        fill = given[-1] if len(given) > 1 else Grade.NONE
        return fill if fill in COUNTS or fill is Grade.SHARE else None
    if set(given) & BATCH:
        return None
    if last in PLACED and full != "range" and sizes & COUNTS:
        return Grade.PLACES
    if last in SAME:
        return worst(given)
    return Grade.SIZED if full.startswith(SCALARS) and not full.startswith("numpy.random.") else None


def compared(node: ast.Compare, given: list[Grade]) -> Grade:
    """Whether two sizes are alike is so in every part; whether there are any samples, in every part that has some."""
    found = worst(given)
    if found in ROWS or found in ODDS:
        return found
    if found in BATCH:
        return Grade.CURVED
    sizes = [grade for grade in given if grade in COUNTS]
    if not sizes or len(sizes) == len(given) or _asks_for_any(node):
        return Grade.NONE
    return Grade.SIZED


def _asks_for_any(node: ast.Compare) -> bool:
    """`len(x) > 0`, `n == 0`, `n >= 1`."""
    said = [each.value for each in node.comparators if isinstance(each, ast.Constant)]
    kinds = (ast.Lt | ast.GtE) if said == [1] else (ast.Gt | ast.Eq | ast.NotEq)
    return said in ([0], [1]) and all(isinstance(each, kinds) for each in node.ops)


def fits(value: ast.expr | None, *, sized: bool) -> bool:
    """Whether a value is only made as long as the batch is: `hidden = torch.zeros(1, len(x), 8)`."""
    return isinstance(value, ast.Call) and sized


def sizes_under(statement: ast.If) -> list[tuple[set[str], ast.expr | None]]:
    """Names that are given a value under a condition, and which."""
    found: list[tuple[set[str], ast.expr | None]] = []
    for node in (each for part in (*statement.body, *statement.orelse) for each in ast.walk(part)):
        if isinstance(node, ast.Assign):
            found += [(names_in(target), node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            found.append((names_in(node.target), None if isinstance(node, ast.AugAssign) else node.value))
    return found


def sized_in(script: Script, forward: Function) -> tuple[Grade, ast.expr] | None:
    """What a model's own `forward` plainly makes of the size of its batch, and where; None if nothing is seen.

    Seen are a size that is compared with a number, one that something is divided by or multiplied with, and halves of
    the batch. Sizes that tensors are made with, or brought into, are no matter, nor products of such.
    """
    given = {each.arg for each in forward.args.args[1:]}
    sizes = {script.text(part) for name in given for part in _sizes_of(forward, name)}
    sizes |= {name for name, value in bindings_in(forward) if script.text(value) in sizes}
    for node in ast.walk(forward):
        if isinstance(node, ast.Compare) and script.text(node.left) in sizes and _is_of_some(script, node):
            return Grade.SIZED, node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and script.text(node.right) in sizes:
            return Grade.SIZED, node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _weighs(script, forward, node, sizes):
            return Grade.SIZED, node
        if is_method(node, *HALVING) and names_in(node.func.value) <= given and halves(script, node):
            return Grade.PLACES, node
    return None


def _weighs(script: Script, forward: Function, node: ast.BinOp, sizes: set[str]) -> bool:
    """`self.layer(x) * x.size(0)`, and the same of a name; not `x.size(0) * self.heads`, nor `B * T`."""
    sides = {script.text(node.left): node.left, script.text(node.right): node.right}
    others = [side for text, side in sides.items() if text not in sizes]
    if len(others) != 1 or len(sides) - len(others) != 1:
        return False
    bound = dict(bindings_in(forward))
    other = bound.get(others[0].id, others[0]) if isinstance(others[0], ast.Name) else others[0]
    called = [each for each in ast.walk(other) if isinstance(each, ast.Call)]
    numbers = ("size", "dim", "numel", "ndimension", "item")
    return any(not is_method(each, *numbers) and script.full_name(each.func) not in NUMBERS for each in called)


def _sizes_of(forward: Function, name: str) -> list[ast.expr]:
    """`len(x)`, `x.size(0)` and `x.shape[0]` that are spoken of."""
    said = (f"len({name})", f"{name}.size(0)", f"{name}.shape[0]")
    return [node for node in ast.walk(forward) if isinstance(node, ast.expr) and ast.unparse(node) in said]


def _is_of_some(script: Script, node: ast.Compare) -> bool:
    """Whether a number of samples is asked for, and not only whether there are any; nor to say that it is too few."""
    asked = script.parents.get(node)
    refuses = isinstance(asked, ast.Assert) or (isinstance(asked, ast.If) and isinstance(asked.body[-1], ast.Raise))
    said = [each.value for each in node.comparators if isinstance(each, ast.Constant)]
    return not refuses and bool(said) and all(type(each) is int and each > 1 for each in said)

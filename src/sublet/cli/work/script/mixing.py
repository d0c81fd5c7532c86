"""Functions of tensors, by what they do to the samples of a batch: which keep them apart, and which do not."""

from __future__ import annotations

import ast

from sublet.cli.work.script.grades import ROWS, Grade
from sublet.cli.work.script.kinds import Function, bindings_in
from sublet.cli.work.script.reading import Script, is_method, names_in

__all__ = [
    "CHOOSING", "HALVING", "LINEAR", "MIXING", "MOVING", "PAIRING", "at_least", "crosses", "divides_by_weights",
    "halves", "moved", "place_of", "turned",
]  # fmt: skip

LINEAR = (  # of a mean they are one, too
    "to", "cuda", "cpu", "float", "double", "half", "bfloat16", "detach", "clone", "item", "tolist", "squeeze", "t",
    "unsqueeze", "view", "reshape", "flatten", "neg", "negative", "stack", "cat", "hstack", "vstack", "as_tensor",
    "tensor", "scale", "contiguous", "expand", "type", "transpose", "real",
)  # fmt: skip
MIXING = (  # by all samples of the batch, unless the dimension is another
    "max", "min", "amax", "amin", "norm", "std", "var", "logsumexp", "median", "quantile", "prod", "topk", "sort",
    "argsort", "kthvalue", "cumsum", "softmax", "log_softmax", "roll", "flip", "vector_norm", "cummax",
)  # fmt: skip
CHOOSING = ("masked_select", "nonzero", "index_select", "unique", "take")
PAIRING = (
    "matmul", "mm", "addmm", "linear", "outer", "cdist", "cov", "corrcoef", "pdist", "tensordot", "kron",
    "bincount", "histc",
)  # fmt: skip
HALVING = ("chunk", "tensor_split", "split")
JOINED = ("cat", "concat", "concatenate", "vstack", "stack", "repeat", "tile")
MOVING = ("t", "transpose", "permute", "swapaxes", "unsqueeze", "movedim", "adjoint")


def turned(rows: Grade) -> Grade:
    """Once more, and samples are in the first place again."""
    return {Grade.EACH: Grade.TURNED, Grade.TURNED: Grade.EACH}.get(rows, rows)


def halves(script: Script, call: ast.Call) -> bool:
    """Whether it cuts a batch by the places of its samples: `x.chunk(2)`, where `x` was not put together before."""
    given = call.args[script.full_name(call.func).startswith("torch.") :]
    place = next((word.value for word in call.keywords if word.arg == "dim"), given[1] if given[1:] else None)
    by_samples = place is None or script.text(place) == "0"
    return by_samples and not _was_joined(script, call)


def _was_joined(script: Script, call: ast.Call) -> bool:
    """Whether what is cut follows from what was put together, which a function or a loader may have done elsewhere."""
    scope = script.scope_of(call)
    bound, named = [*bindings_in(scope)], set[str]()
    todo: list[ast.AST] = [call]
    while todo:
        value = todo.pop()
        if _joins(script, value):
            return True
        new = names_in(value) - named
        named |= new
        todo += [given for name, given in bound if name in new and given is not None]
    own = (
        {each.arg for each in ast.walk(scope.args) if isinstance(each, ast.arg)} if isinstance(scope, Function) else ()
    )
    elsewhere: list[ast.AST] = [each for each in ast.walk(script.tree) if isinstance(each, Function)]
    return any(_joins(script, each) for each in ([script.tree] if named & {*own} else elsewhere))


def _joins(script: Script, piece: ast.AST) -> bool:
    """Whether samples are put together there; `torch.cat([a, b], dim=1)` puts columns together."""
    for call in [node for node in ast.walk(piece) if isinstance(node, ast.Call)]:
        last = script.full_name(call.func).rpartition(".")[2]
        if is_method(call, *JOINED) or last in JOINED:
            columns = last.startswith("conc") or last == "cat"
            if not columns or place_of(script, call) in ("", "0"):
                return True
    return False


def moved(script: Script, call: ast.Call, what: str, rows: Grade) -> Grade:
    """Of dimensions that change places: whether that of the samples does."""
    function = script.full_name(call.func).startswith("torch.")
    places = [script.text(each).strip("()[] ") for each in (*call.args[function:], *(w.value for w in call.keywords))]
    if what == "unsqueeze":
        return turned(rows) if places[:1] == ["0"] else rows
    if what == "permute":
        return rows if "".join(places).startswith("0") else turned(rows)
    stays = bool(places) and not any(each == "0" or each.startswith("-") for each in places)
    return rows if stays else turned(rows)


def place_of(script: Script, call: ast.Call) -> str:
    """The dimension that a call goes over, as it is written; "" if it goes over all."""
    words = {word.arg: word.value for word in call.keywords}
    if (said := words.get("dim", words.get("axis", words.get("dims")))) is not None:
        return script.text(said)
    full = script.full_name(call.func)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else full.rpartition(".")[2]
    function = full.startswith(("torch.", "numpy."))
    second = name in ("norm", "topk", "quantile", "kthvalue", "roll", "vector_norm")
    rest = call.args[function + second :]
    return script.text(rest[0]) if rest else ""


def at_least(script: Script, divisor: ast.expr) -> ast.expr:
    """`n` of `n.clamp(min=1)`, `torch.clamp(n, min=1)` or `max(n, 1)`, by which something is divided."""
    if is_method(divisor, "clamp", "clamp_min") and not script.full_name(divisor.func).startswith("torch."):
        return divisor.func.value
    full = script.full_name(divisor.func) if isinstance(divisor, ast.Call) else ""
    known = full in ("max", "torch.clamp", "torch.clamp_min")
    return divisor.args[0] if known and isinstance(divisor, ast.Call) and divisor.args else divisor


def divides_by_weights(name: str) -> bool:
    """Whether the mean of this loss of torch is divided by the weights of its labels, if it is given some."""
    return name in ("CrossEntropyLoss", "NLLLoss", "NLLLoss2d", "cross_entropy", "nll_loss", "partial") or (
        name.endswith("_loss") and any(word in name for word in ("mse", "l1", "huber"))
    )


def crosses(call: ast.Call, given: list[Grade]) -> bool:
    """Whether `einsum` puts samples of one beside those of another, or adds them up."""
    said = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
    sides, _, made = str(said).replace(" ", "").partition("->")
    firsts = {side[:1] for side, grade in zip(sides.split(","), given[1:], strict=False) if grade in ROWS}
    return len(firsts) != 1 or not made.startswith(tuple(firsts))

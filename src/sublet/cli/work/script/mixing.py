"""Functions of tensors, by what they do to the samples of a batch: which keep them apart, and which do not."""

from __future__ import annotations

import ast

from sublet.cli.work.script.grades import Grade
from sublet.cli.work.script.reading import Script, is_method

__all__ = [
    "CHOOSING", "LINEAR", "MIXING", "MOVING", "PAIRING", "at_least", "divides_by_weights", "moved", "place_of",
    "turned",
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
MOVING = ("t", "transpose", "permute", "swapaxes", "unsqueeze", "movedim", "adjoint")


def turned(rows: Grade) -> Grade:
    """Once more, and samples are in the first place again."""
    return {Grade.EACH: Grade.TURNED, Grade.TURNED: Grade.EACH}.get(rows, rows)


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

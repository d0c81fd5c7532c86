"""Where the batches of a loop come from: a loader that it goes over, or asks; or a function that draws them."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.edits import CannotConvert
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.over import counted_in, unwrapped
from sublet.cli.work.script.reading import Script, is_method, last_of, names_in

__all__ = ["Source", "source_of"]

DRAWS = ("torch.rand", "numpy.random", "random.sample", "random.choice", "np.random", "torch.multinomial")


@dataclass(slots=True, kw_only=True)
class Source:
    """What the session is given for its data, and how its batches are taken from it."""

    data: str  # as an expression where the session is made
    loader: ast.expr | None = None  # in the loop's head, to become the session; None = the whole head is new
    target: str = ""  # of a new head
    gone: list[ast.stmt] = field(default_factory=list)
    above: list[str] = field(default_factory=list)  # lines before the session
    drawn: bool = False
    counts: list[tuple[ast.expr, str]] = field(default_factory=list)  # of samples to an epoch, and what to say instead


def source_of(training: Training) -> Source:
    """CannotConvert, if there is none that can be shared."""
    script, loop = training.script, training.batches
    scope = script.scope_of(loop)
    if isinstance(loop, ast.For) and counted_in(script, loop) is None:
        over = unwrapped(script, loop.iter, scope)
        _refuse_odd(script, over, loop)
        return Source(data=training.lifted(over), loader=over)
    for node in ast.walk(loop):
        if is_method(node, "step") and "env" in script.text(node.func.value).lower():
            raise CannotConvert(
                "the loop makes its own samples, in an environment",
                node.lineno,
                "train.checkpointed: it keeps a loop of the script's own",
            )
    blocks = [loop.body, *([training.micro.body] if training.micro else [])]
    for block in reversed(blocks):
        if (found := _asked(training, block)) is not None:
            return found
    for block in reversed(blocks):
        if (found := _drawn(training, block)) is not None:
            return found
    if isinstance(loop, ast.For) and training.epochs is not None:
        raise CannotConvert(
            "batches are cut out of the data by hand",
            loop.lineno,
            "a DataLoader of a TensorDataset, and `for x, y in loader`",
        )
    raise CannotConvert(
        "each turn of the loop takes the same data, which no worker could have a part of",
        loop.lineno,
        "a DataLoader; or `lambda: (x, y)` in train.drawn(...), where rows of x and y are samples",
    )


def _refuse_odd(script: Script, over: ast.expr, loop: ast.For) -> None:
    if isinstance(over, ast.Call):
        name = script.full_name(over.func)
        if name == "zip":
            raise CannotConvert(
                "two loaders are gone over side by side", loop.lineno, "one of torch.utils.data.StackDataset(a, b)"
            )
        function = next(
            (each for each in ast.walk(script.tree) if isinstance(each, ast.FunctionDef) and each.name == name), None
        )
        if function is not None and any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(function)):
            raise CannotConvert(
                f"the batches come from a generator, {name}(), of which no worker could take a part",
                loop.lineno,
                "a dataset in a DataLoader; or a function that gives one batch: train.drawn(function)",
            )
    for value in script.values_of(last_of(over)):
        if isinstance(value, ast.Call) and any(word.arg == "batch_sampler" for word in value.keywords):
            raise CannotConvert("the loader has a batch_sampler", value.lineno, "batch_size= and sampler=")


def _asked(training: Training, block: list[ast.stmt]) -> Source | None:
    """`batch = next(batches)`, and `batches = iter(loader)` above it or where it ends."""
    script = training.script
    for each in block:
        asks = [
            node
            for node in ast.walk(each)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_next(script, node.value)
        ]
        if not asks or not isinstance(each, ast.Try | ast.Assign):
            continue
        value = asks[0].value
        assert isinstance(value, ast.Call)  # noqa: S101 - it was looked for
        asked = value.args[0] if value.args else value.func.value  # type: ignore[attr-defined]  # it.next()
        loader = _iterated(training, asked)
        own = {each.name for each in ast.walk(script.tree) if isinstance(each, ast.ClassDef)}
        maker = script.made_by(asked)
        if maker in own:
            raise CannotConvert(
                f"batches come from {maker}, a class of the script",
                asks[0].lineno,
                "a DataLoader, and `for batch in loader`",
            )
        if loader is None:
            raise CannotConvert(
                f"`{script.text(asked)}` is an iterator, which has no samples that could be dealt",
                asks[0].lineno,
                "the loader that it goes over, as `for batch in loader`",
            )
        gone = [each, *_starts(training, asked)]
        counts = list(_endless_samplers(script, loader))
        return Source(data=training.lifted(loader), target=script.text(asks[0].targets[0]), gone=gone, counts=counts)
    return None


def _endless_samplers(script: Script, loader: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """`RandomSampler(data, replacement=True, num_samples=int(1e10))`: an epoch is as many as there are samples."""
    for made in script.values_of(last_of(loader)):
        for node in ast.walk(made):
            if isinstance(node, ast.Call) and last_of(node.func) == "RandomSampler" and node.args:
                for word in node.keywords:
                    if word.arg == "num_samples" and not names_in(word.value) - {"int"}:
                        yield word.value, f"len({script.text(node.args[0])})"


def _is_next(script: Script, call: ast.Call) -> bool:
    return script.full_name(call.func) == "next" or (is_method(call, "__next__", "next") and not call.args)


def _iterated(training: Training, asked: ast.expr) -> ast.expr | None:
    if isinstance(asked, ast.Call):
        return asked.args[0] if asked.args else None
    for value in training.script.values_of(last_of(asked)):
        if isinstance(value, ast.Call) and value.args:
            return value.args[0]
    return None


def _starts(training: Training, asked: ast.expr) -> list[ast.stmt]:
    """`batches = iter(loader)` before the loop, which nothing else asks."""
    script, name = training.script, training.script.text(asked)
    return [
        node
        for node in ast.walk(training.scope)
        if isinstance(node, ast.Assign)
        and script.text(node.targets[0]) == name
        and node.lineno < training.outer.lineno
        and script.scope_of(node) is training.scope
    ]


def _drawn(training: Training, block: list[ast.stmt]) -> Source | None:
    """`x, y = get_batch("train")`; or lines that draw, before anything else is done."""
    script, loop = training.script, training.batches
    functions = {each.name for each in ast.walk(script.tree) if isinstance(each, ast.FunctionDef)}
    changing = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for each in block:
        if not (isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)):
            continue
        name = last_of(each.value.func)
        words = ("batch", "sample", "data")
        if not (any(word in name.lower() for word in words) and (name in functions or "batch" in name.lower())):
            continue
        if any(names_in(arg) & changing for arg in (*each.value.args, *(word.value for word in each.value.keywords))):
            raise CannotConvert(
                f"{name}() is told in which turn it draws", each.lineno, f"a {name}() that draws by torch's dice alone"
            )
        call = training.lifted(each.value)
        plain = not each.value.args and not each.value.keywords
        function = call[: call.rindex("(")] if plain else f"lambda: {call}"
        target = script.text(each.targets[0])
        same = [
            node
            for node in ast.walk(training.scope)
            if isinstance(node, ast.Assign)
            and script.text(node.targets[0]) == target
            and script.text(node.value) == script.text(each.value)
        ]
        return Source(data=f"DRAWN({function})", target=target, gone=list[ast.stmt](same), drawn=True)
    return _drawn_here(training, block)


def _drawn_here(training: Training, block: list[ast.stmt]) -> Source | None:
    """The first lines of the loop, as a function of their own."""
    script = training.script
    lines: list[ast.stmt] = []
    for each in block:
        if not isinstance(each, ast.Assign) or any(is_method(node, "backward", "zero_grad") for node in ast.walk(each)):
            if lines:
                break
            continue
        draws = any(
            isinstance(node, ast.Call) and script.full_name(node.func).startswith(DRAWS) for node in ast.walk(each)
        )
        if draws or (lines and _is_indexing(each, lines)):
            lines.append(each)
        elif lines:
            break
    made = {node.id for each in lines for node in ast.walk(each) if isinstance(node, ast.Name) and _stores(node)}
    if not lines or training.within or training.hops:
        return None
    rest = [node for node in block if node not in lines]
    used = sorted(made & {name for each in rest for name in names_in(each)})
    if not used:
        return None
    text = "\n".join(script.text(each) for each in lines)
    body = textwrap.indent(textwrap.dedent(text), "    ").split("\n")
    given = ", ".join(used)
    above = ["def draw():", *body, f"    return {given}{',' if len(used) == 1 else ''}", "", ""]
    target = given + ("," if len(used) == 1 else "")
    return Source(
        data="DRAWN(draw)", target=f"({target})" if len(used) == 1 else target, gone=lines, above=above, drawn=True
    )


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_indexing(each: ast.Assign, lines: list[ast.stmt]) -> bool:
    """`x = data[chosen]`: what the lines before it made chooses rows; and `.to(device)`."""
    made = {node.id for line in lines for node in ast.walk(line) if isinstance(node, ast.Name) and _stores(node)}
    if not names_in(each.value) & made:
        return False
    calls = [node for node in ast.walk(each.value) if isinstance(node, ast.Call)]
    plain = all(
        is_method(call, "to", "cuda", "long", "float", "view", "pin_memory", "astype") or _is_torch(call)
        for call in calls
    )
    return plain


def _is_torch(call: ast.Call) -> bool:
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in ("torch", "np", "numpy")

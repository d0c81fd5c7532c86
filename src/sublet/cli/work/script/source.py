"""Where the batches of a loop come from: a loader that it goes over, or asks; or a function that draws them."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass, field

from sublet.cli.work.script.extent import range_of, unwrapped
from sublet.cli.work.script.loops import OWN, Training
from sublet.cli.work.script.reading import (
    CannotConvert,
    Script,
    is_method,
    last_of,
    names_in,
    root_of,
    statement_of,
    stores_in,
    substituted,
)

__all__ = ["Source", "source_of"]

DRAWS = ("torch.rand", "numpy.random", "random.sample", "random.choice", "np.random", "torch.multinomial")
MOVES = ("to", "cuda", "long", "float", "view", "pin_memory", "astype")


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
    if isinstance(loop, ast.For) and range_of(script, loop) is None:
        over = unwrapped(script, loop.iter, script.scope_of(loop))
        for value in (over, *script.values_of(last_of(over))):
            if isinstance(value, ast.Call) and script.full_name(value.func) in ("range", "zip"):
                why, do = f"`{script.text(value)}` has no samples that could be dealt", "one dataset in a DataLoader"
                raise CannotConvert(why, loop.lineno, do)
        return Source(data=training.lifted(over), loader=over)
    for node in ast.walk(loop):
        if is_method(node, "step") and "env" in script.text(node.func.value).lower():
            raise CannotConvert("the loop makes its own samples, in an environment", node.lineno, OWN)
    blocks = [*([training.micro.body] if training.micro else []), loop.body]
    for find in (_asked, _drawn):
        for block in blocks:
            if (source := find(training, block)) is not None:
                return source
    if isinstance(loop, ast.For) and training.epochs is not None:
        do = "a DataLoader of a TensorDataset, and `for x, y in loader`"
        raise CannotConvert("batches are cut out of the data by hand", loop.lineno, do)
    why = "each turn of the loop takes the same data, which no worker could have a part of"
    do = "a DataLoader; or `lambda: (x, y)` in train.drawn(...), where rows of x and y are samples"
    raise CannotConvert(why, loop.lineno, do)


# ------------------------------------------------------------------------------------------- a loader that is asked


def _asked(training: Training, block: list[ast.stmt]) -> Source | None:
    """`batch = next(batches)`, and `batches = iter(loader)` above it or where it ends."""
    script = training.script
    for each in block:
        asks = [value for _, value, _ in stores_in(each) if isinstance(value, ast.Call) and _is_next(script, value)]
        if not asks or not isinstance(each, ast.Try | ast.Assign):
            continue
        call = asks[0]
        asked = call.args[0] if call.args else call.func.value  # type: ignore[attr-defined]  # it.next()
        target = script.text(script.parents[call].targets[0])  # type: ignore[attr-defined]  # it is an assignment
        maker = next((one for one in script.classes if one.name == script.made_by(asked)), None)
        if maker is not None:
            loader, what = _of_class(training, asked, maker), f"{maker.name}, a class of the script"
        else:
            loader, what = _iterated(training, asked), f"`{script.text(asked)}`, an iterator"
        if loader is None:
            do = "the loader that it goes over, as `for batch in loader`"
            raise CannotConvert(f"batches come from {what}", call.lineno, do)
        starts = [
            statement_of(script, node)
            for one, _, node in stores_in(training.scope)
            if script.text(one) == script.text(asked) and node.lineno < training.outer.lineno
            if script.scope_of(node) is training.scope and maker is None
        ]
        counts = _endless(script, last_of(loader[0]))
        return Source(data=loader[1], target=target, gone=[each, *starts], counts=counts)
    return None


def _is_next(script: Script, call: ast.Call) -> bool:
    return script.full_name(call.func) == "next" or (is_method(call, "__next__", "next") and not call.args)


def _iterated(training: Training, asked: ast.expr) -> tuple[ast.expr, str] | None:
    values = [asked] if isinstance(asked, ast.Call) else training.script.values_of(last_of(asked))
    found = next((value.args[0] for value in values if isinstance(value, ast.Call) and value.args), None)
    return None if found is None else (found, training.lifted(found))


def _of_class(training: Training, asked: ast.expr, maker: ast.ClassDef) -> tuple[ast.expr, str] | None:
    """`self.loader` of a class that gives one batch of it after the other."""
    script = training.script
    pairs = [(target, value) for target, value, _ in stores_in(maker) if isinstance(value, ast.Call)]
    loaders = [target for target, value in pairs if last_of(value.func) == "DataLoader" and root_of(target) == "self"]
    given = [node.value for node in ast.walk(maker) if isinstance(node, ast.Return) and node.value is not None]
    nexts = {last_of(target) for target, value in pairs if last_of(value.func) == "next"}
    plain = all(last_of(each) in nexts or last_of(getattr(each, "func", each)) == "next" for each in given)
    if len(loaders) != 1 or not plain or any(isinstance(node, ast.Yield) for node in ast.walk(maker)):
        return None  # it changes them
    return loaders[0], substituted(script.text(loaders[0]), {"self": training.lifted(asked)})


def _endless(script: Script, loader: str) -> list[tuple[ast.expr, str]]:
    """`RandomSampler(data, replacement=True, num_samples=int(1e10))`: an epoch is as many as there are samples."""
    made = list(script.values_of(loader))
    made += [each for value in made for name in names_in(value) for each in script.values_of(name)]
    return [
        (word.value, f"len({script.text(node.args[0])})")
        for node in dict.fromkeys(node for each in made for node in ast.walk(each))
        if isinstance(node, ast.Call) and last_of(node.func) == "RandomSampler" and node.args
        for word in node.keywords
        if word.arg == "num_samples" and not names_in(word.value) - {"int"}
    ]


# ------------------------------------------------------------------------------------------- a function that draws


def _drawn(training: Training, block: list[ast.stmt]) -> Source | None:
    """`x, y = get_batch("train")`; or lines that draw, before anything else is done."""
    script = training.script
    functions = {each.name for each in script.functions}
    changing = {name for target, _, _ in stores_in(training.batches) for name in names_in(target)}
    if isinstance(training.batches, ast.For):
        changing |= names_in(training.batches.target)
    for each in block:
        if not (isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)):
            continue
        name, given = last_of(each.value.func), [*each.value.args, *(word.value for word in each.value.keywords)]
        draws = name in functions and any(word in name.lower() for word in ("sample", "data"))
        if not draws and "batch" not in name.lower():
            continue
        if any(names_in(arg) & changing for arg in given):
            do = f"a {name}() that draws by torch's random numbers alone"
            raise CannotConvert(f"{name}() is told in which turn it draws", each.lineno, do)
        call, target = training.lifted(each.value), script.text(each.targets[0])
        same = [
            node
            for node in ast.walk(training.scope)
            if isinstance(node, ast.Assign)
            and script.text(node.targets[0]) == target
            and script.text(node.value) == script.text(each.value)
        ]
        function = f"lambda: {call}" if given else call[: call.rindex("(")]
        return Source(data=f"DRAWN({function})", target=target, gone=list[ast.stmt](same), drawn=True)
    return _drawn_here(training, block)


def _drawn_here(training: Training, block: list[ast.stmt]) -> Source | None:
    """The first lines of the loop, as a function of their own."""
    script, lines, made = training.script, list[ast.stmt](), set[str]()
    for each in block:
        plain = isinstance(each, ast.Assign) and not any(
            is_method(node, "backward", "zero_grad") for node in ast.walk(each)
        )
        calls = [node for node in ast.walk(each) if isinstance(node, ast.Call)]
        draws = any(script.full_name(call.func).startswith(DRAWS) for call in calls)
        chooses = names_in(each) & made and all(
            is_method(call, *MOVES) or root_of(call.func) in ("torch", "np", "numpy") for call in calls
        )
        if plain and (draws or chooses):
            lines.append(each)
            made |= {name for target, _, _ in stores_in(each) for name in names_in(target)}
        elif lines:
            break
    used = sorted(made & {name for each in block if each not in lines for name in names_in(each)})
    if not used or training.within or training.hops:
        return None
    body = textwrap.indent(textwrap.dedent("\n".join(script.text(each) for each in lines)), "    ").split("\n")
    given = ", ".join(used) + ("," if len(used) == 1 else "")
    target = f"({given})" if len(used) == 1 else given
    above = ["def draw():", *body, f"    return {given}", "", ""]
    return Source(data="DRAWN(draw)", target=target, gone=lines, above=above, drawn=True)

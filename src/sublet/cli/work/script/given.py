"""Arguments of the session: the model that the loop trains, its batches, and whether its loss is a sum."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.extent import range_of, unwrapped
from sublet.cli.work.script.loops import OWN, Training
from sublet.cli.work.script.reading import CannotConvert, Script, is_local, is_method, last_of, names_in, stores_in

LOSSES = ("loss", "crit", "metric", "nll", "mse", "bce")


@dataclass(slots=True, kw_only=True)
class Source:
    """Where the batches of a loop come from: a loader that it goes over, or asks; or a function that draws them."""

    data: str  # as an expression where the session is made
    loader: ast.expr | None = None  # in the loop's head, to become the session; None = the whole head is new
    target: str = ""  # of a new head
    gone: list[ast.stmt] = field(default_factory=list)
    drawn: bool = False  # `data` is a function for train.drawn
    counts: list[tuple[ast.expr, str]] = field(default_factory=list)  # of samples to an epoch, and what to say instead


def source_of(training: Training) -> Source:
    """CannotConvert, if there is none that workers could share."""
    script, loop = training.script, training.batches
    if isinstance(loop, ast.For) and range_of(script, loop) is None:
        over = unwrapped(script, loop.iter, script.scope_of(loop))
        for value in (over, *script.values_of(last_of(over))):
            if isinstance(value, ast.Call) and last_of(value.func) in ("range", "zip", "count"):
                why, do = f"`{script.text(value)}` is no dataset to share among workers", "one dataset in a DataLoader"
                raise CannotConvert(why, loop.lineno, do)
        return Source(data=training.lifted(over), loader=over)
    for node in ast.walk(loop):
        if is_method(node, "step") and "env" in script.text(node.func.value).lower():
            raise CannotConvert("the samples come from an environment that the loop steps", node.lineno, OWN)
    if training.epochs is not None:
        do = "a DataLoader of a TensorDataset, and `for x, y in loader`"
        raise CannotConvert("batches are cut out of the data by hand", loop.lineno, do)
    for line in [*(training.micro.body if training.micro else []), *loop.body]:
        if (source := _asked(training, line) or _drawn(training, line)) is not None:
            return source
    why = "no line of the loop takes a batch from a loader or a function: all workers would train on the same data"
    do = "a DataLoader; or a function get_batch() that draws a batch by torch's random numbers"
    raise CannotConvert(why, loop.lineno, do)


def _asked(training: Training, line: ast.stmt) -> Source | None:
    """`batch = next(batches)`, and `batches = iter(loader)` above it or where it ends."""
    script = training.script
    calls = [value for _, value, _ in stores_in(line) if isinstance(value, ast.Call)]
    nexts = [call for call in calls if script.full_name(call.func) == "next"]
    asks = nexts or [call for call in calls if is_method(call, "__next__", "next") and not call.args]
    if not asks or not isinstance(line, ast.Try | ast.Assign):
        return None
    call = asks[0]
    asked = call.args[0] if call.args else call.func.value  # type: ignore[attr-defined]  # it.next()
    values = [asked] if isinstance(asked, ast.Call) else script.values_of(last_of(asked))
    made = [value for value in values if isinstance(value, ast.Call) and value.args]
    if not made or last_of(made[0].func) in {each.name for each in script.classes}:
        do = "the loader that it goes over, as `for batch in loader`"
        raise CannotConvert(f"batches come from `{script.text(asked)}`, an iterator", call.lineno, do)
    loader = unwrapped(script, made[0].args[0], script.scope_of(made[0]))
    target = script.text(script.parents[call].targets[0])  # type: ignore[attr-defined]  # it is an assignment
    given = [node for to, _, node in stores_in(training.scope) if script.text(to) == script.text(asked)]
    own = [node for node in given if isinstance(node, ast.stmt) and script.scope_of(node) is training.scope]
    starts = [node for node in own if node.lineno < training.outer.lineno]
    counts = [  # RandomSampler(data, replacement=True, num_samples=int(1e10)): an epoch has as many as there are
        (word.value, f"len({script.text(node.args[0])})")
        for node in script.calls
        for word in (node.keywords if last_of(node.func) == "RandomSampler" and node.args else ())
        if word.arg == "num_samples" and not names_in(word.value) - {"int"}
    ]
    return Source(data=training.lifted(loader), target=target, gone=[line, *starts], counts=counts)


def _drawn(training: Training, line: ast.stmt) -> Source | None:
    """`x, y = get_batch("train")`."""
    script = training.script
    if not (isinstance(line, ast.Assign) and isinstance(line.value, ast.Call)):
        return None
    name, given = last_of(line.value.func), [*line.value.args, *(word.value for word in line.value.keywords)]
    draws = name in script.own and any(word in name.lower() for word in ("sample", "data"))
    if not draws and "batch" not in name.lower():
        return None
    changing = {name for target, _, _ in stores_in(training.batches) for name in names_in(target)}
    changing |= names_in(training.batches.target) if isinstance(training.batches, ast.For) else set()
    if any(names_in(arg) & changing for arg in given):
        do = f"a {name}() that draws by torch's random numbers alone"
        raise CannotConvert(f"{name}() has arguments that change with the step", line.lineno, do)
    call, text = training.lifted(line.value), script.text(line)
    same = [node for node in ast.walk(training.scope) if isinstance(node, ast.Assign) and script.text(node) == text]
    function = f"lambda: {call}" if given else call[: call.rindex("(")]
    return Source(data=function, target=script.text(line.targets[0]), gone=list[ast.stmt](same), drawn=True)


def models_of(training: Training) -> str:
    """The model whose parameters the optimizer has, or a dict of several; else the one that the loop calls."""
    script, optimizer = training.script, training.updates[0].optimizer
    lifted = training.lifted(optimizer)
    for value in script.values_of(last_of(ast.parse(lifted, mode="eval").body) or last_of(optimizer)):
        nodes = _receivers(script, value, 0) if isinstance(value, ast.Call) else ()
        seen = dict.fromkeys(text for node in nodes if (text := _seen_from(training, node, lifted)) is not None)
        if len(seen) == 1:
            return next(iter(seen))
        if seen:
            return "{" + ", ".join(f'"{each.rsplit(".", 1)[-1]}": {each}' for each in seen) + "}"
    return _called(training)


def _receivers(script: Script, value: ast.AST, depth: int) -> Iterator[ast.expr]:
    """Objects whose `parameters()` are in it, also by the name of a list of them."""
    for node in ast.walk(value):
        if is_method(node, "parameters", "named_parameters", "configure_optimizers"):
            if script.text(node.func.value) not in ("self", "super()") or node.func.attr == "parameters":
                yield _whole(script, node.func.value)
        elif isinstance(node, ast.Name) and depth < 2:  # noqa: PLR2004 - a list of groups of a list of parameters
            for target, given, each in stores_in(script.scope_of(node)):
                if last_of(target) == node.id and each.lineno < node.lineno and given is not None:
                    yield from _receivers(script, given, depth + 1)


def _whole(script: Script, node: ast.expr) -> ast.expr:
    """`model` of `model.head`, `self.model` of `self.model.head`, `model` of `model.module`."""
    chain = [node]
    while isinstance(chain[-1], ast.Attribute | ast.Subscript):
        chain.append(chain[-1].value)
    return chain[-2 if script.text(chain[-1]) == "self" and len(chain) > 1 else -1]


def _seen_from(training: Training, node: ast.expr, optimizer: str) -> str | None:
    """The model in the names that it has where the session is; None if it is another function's own."""
    script, text, holder = training.script, training.script.text(node), optimizer.rpartition(".")[0]
    if holder or text.startswith("self."):  # self.optimizer, and self.model beside it
        stores = [to for to, _, _ in stores_in(script.tree) if isinstance(to, ast.Attribute)]
        own = text.startswith("self.") or any(to.attr == text for to in stores)
        return f"{holder}.{text.removeprefix('self.')}" if own and holder else None
    seen = script.scope_of(node) in (training.scope, script.tree) or is_local(training.scope, text)
    return text if seen else None


def _called(training: Training) -> str:
    """The model that is told to train, or the one that is called."""
    script = training.script
    scopes = [training.outer, *(hop.function for hop in training.hops)]
    calls = [node for scope in reversed(scopes) for node in ast.walk(scope) if isinstance(node, ast.Call)]
    found = [_whole(script, call.func.value) for call in calls if is_method(call, "train", "eval") and not call.args]
    for call in calls:
        name = last_of(call.func).lower()
        if call.args and ("model" in name or "net" in name) and not any(word in name for word in LOSSES):
            found.append(call.func)
    for node in found:
        if last_of(node) not in ("", "self", *script.own):
            return training.lifted(node)
    why, do = "the model of the optimizer is not found in this file", "train.session(model, optimizer, ...) by hand"
    raise CannotConvert(why, training.steps[0].lineno, do)


def is_summed(training: Training) -> bool:
    """Whether the lines that make the loss have a sum that nothing divides: a session has to be told."""
    script, call = training.script, training.backwards[-1]
    lines, made = list(stores_in(training.inner_scope)), list[ast.AST]([call])
    for each in made:  # which grows: by what its names are given, and the functions and criteria that it calls
        names, found = names_in(each), list[ast.AST | None]()
        for to, value, line in lines:
            if last_of(to) in names and line.lineno <= call.lineno:
                found.append(line if isinstance(line, ast.AugAssign) else value)
        for name in [last_of(inner.func) for inner in ast.walk(each) if isinstance(inner, ast.Call)]:
            found += [value for value in script.values_of(name) if isinstance(value, ast.Call)]
            found += [function for function in script.functions if function.name == name and "loss" in name.lower()]
        made += [node for node in found if node is not None and node not in made][: 99 - len(made)]
    nodes = [node for each in made for node in ast.walk(each)]
    divided = any(isinstance(getattr(node, "op", None), ast.Div) for node in nodes)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    means = any(last_of(node.func) == "mean" for node in calls)
    sums = [call for call in calls if script.text(call).endswith(".sum()")]
    words = {f"{word.arg}={script.text(word.value)}".replace('"', "'") for call in calls for word in call.keywords}
    return not divided and not means and bool(sums or words & {"reduction='sum'", "size_average=False"})

"""What is in a script: frameworks, optimizers, loaders, loops, what it saves and what its loss is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.by_one import written_in
from sublet.cli.work.script.clipping import clips_in, edits_in
from sublet.cli.work.script.dice import chosen_by_torch, drawn_by_samples
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.files import Writes
from sublet.cli.work.script.losses import Loss, loss_of
from sublet.cli.work.script.reading import Script, is_method, root_of
from sublet.cli.work.script.remembering import saves_by_all

__all__ = ["REFUSED", "Facts", "Loop", "Made", "Stream", "batches_in", "look_at"]

FRAMEWORKS = ("transformers", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "jax", "tensorflow", "keras")
TRACKERS = {"tensorboard", "tensorboardX", "wandb", "mlflow"}
DISTRIBUTED = (
    "torch.distributed.init_process_group",
    "torch.nn.DataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.utils.data.distributed.DistributedSampler",
    "torch.utils.data.DistributedSampler",
    "torch.distributed.fsdp.FullyShardedDataParallel",
)
REFUSED = ("LBFGS", "SparseAdam")  # as sublet.train.fitness has it
SAVES = {"save_pretrained", "save_checkpoint", "save_model"}
LOADS = {"load_state_dict", "load_checkpoint", "from_checkpoint", "load_from_checkpoint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Something that the script makes and keeps under a name."""

    name: str
    kind: str  # its class, without where it is from
    line: int
    call: ast.Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One in which an optimizer makes steps: the innermost that does."""

    inner: ast.For | ast.While
    outer: ast.For | None  # directly around it
    steps: tuple[ast.Call, ...]  # of optimizers
    backwards: tuple[ast.Call, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A dataset that gives its samples one after the other."""

    line: int
    has_state: bool  # it can say where it is, and go on from there
    asks: bool  # which part of its samples it is to give; or something else in the script does


@dataclass(slots=True, kw_only=True)
class Facts:
    """Of one script; lines are counted from 1."""

    frameworks: list[str] = field(default_factory=list)
    distributed: list[tuple[str, int]] = field(default_factory=list)
    optimizers: list[Made] = field(default_factory=list)
    unnamed: list[int] = field(default_factory=list)  # where optimizers are made that get no name there
    schedulers: list[Made] = field(default_factory=list)
    scalers: list[Made] = field(default_factory=list)
    averages: list[Made] = field(default_factory=list)
    loaders: list[Made] = field(default_factory=list)
    trackers: list[str] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    saves: list[int] = field(default_factory=list)
    saves_in_loop: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    loss: Loss | None = None  # of what goes backward
    clips: list[int] = field(default_factory=list)  # where gradients are clipped by hand, in a loop
    edits: list[int] = field(default_factory=list)  # where `.grad` is spoken of in a loop
    resumes: list[int] = field(default_factory=list)  # where it loads what an optimizer has come to
    saves_by_all: list[int] = field(default_factory=list)  # where each rank of a training loop would write
    rows_by_all: list[int] = field(default_factory=list)  # where each would add rows
    own_dice: list[int] = field(default_factory=list)  # where something is chosen by a die of torch
    dice_of_samples: list[int] = field(default_factory=list)  # where Python's or numpy's are thrown for each sample
    loops: list[Loop] = field(default_factory=list)
    trainings: list[ast.For | ast.While] = field(default_factory=list)  # loops over the whole training
    has_session: bool = False
    compiles: bool = False

    def named(self, name: str) -> Made | None:
        """The optimizer, scheduler, ... of this name, if there is one."""
        every = (*self.optimizers, *self.schedulers, *self.scalers, *self.averages, *self.loaders)
        return next((made for made in every if made.name == name), None)


def look_at(script: Script) -> Facts:
    """All of it."""
    found = Facts()
    imported = {name.split(".")[0] for name in script.modules}
    found.frameworks = [name for name in FRAMEWORKS if name in imported]
    found.trackers = sorted(name for name in TRACKERS if any(name in module.split(".") for module in script.modules))
    found.has_session = any(name == "sublet" or name.startswith("sublet.") for name in script.modules)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call):
            _see_call(script, node, found)
        elif isinstance(node, ast.ClassDef) and any("IterableDataset" in script.full_name(b) for b in node.bases):
            found.streams.append(_stream(script, node))
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign):
            for target, call in _given_calls(node):
                _see_made(script, target, call, found)
    named = {id(made.call) for made in found.optimizers}
    found.unnamed = sorted(call.lineno for call in _optimizers(script) if id(call) not in named)
    found.loops = list(_loops(script, found))
    steppers = {made.name for made in found.optimizers}
    found.resumes = sorted(
        node.lineno
        for node in ast.walk(script.tree)
        if is_method(node, "load_state_dict") and root_of(node.func) in steppers
    )
    found.trainings = list(_trainings(script, found))
    for around in found.trainings:
        found.saves_by_all += [
            each.lineno for each in saves_by_all(script, around) if not _is_ranked(script, each, around)
        ]
        inner = next((each.inner for each in found.loops if around in (each.inner, each.outer)), batches_in(around))
        effects = Effects(script, around)
        found.own_dice += sorted({*chosen_by_torch(effects, around, inner)})
        found.dice_of_samples += sorted({*drawn_by_samples(effects, around, inner)})
        for each in written_in(Effects(script), around):
            at = each.statement.lineno
            if not _is_ranked(script, each.statement, around) and at not in found.saves_by_all:
                (found.rows_by_all if each.what in (Writes.ROWS, Writes.LOG) else found.saves_by_all).append(at)
    looped = [node for node in ast.walk(script.tree) if isinstance(node, ast.For | ast.While)]
    found.clips = sorted({call.lineno for loop in looped for call in clips_in(script, loop)})
    found.edits = sorted({each.lineno for loop in looped for each in edits_in(script, loop)})
    if found.loops:
        inner, calls = found.loops[0].inner, found.loops[0].backwards
        found.loss = loss_of(Effects(script), inner, [call.func.value for call in calls if is_method(call, "backward")])
    return found


def _given_calls(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.Call]]:
    """What a call makes, by what it is given to; `net, optimizer = Net(), SGD(...)` makes two."""
    target, value = node.targets[0], node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = list(zip(target.elts, value.elts, strict=True))
    yield from ((one, other) for one, other in pairs if isinstance(other, ast.Call))


def _optimizers(script: Script) -> Iterator[ast.Call]:
    for node in ast.walk(script.tree):
        full = script.full_name(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and full.startswith("torch.optim.") and full.count(".") == 2:  # noqa: PLR2004 - a class in torch.optim
            yield node


def _see_made(script: Script, target: ast.expr, call: ast.Call, found: Facts) -> None:
    name, full = script.text(target), script.full_name(call.func)
    if not isinstance(target, ast.Name):
        name = ""  # nobody can speak of it
    made = Made(name=name, kind=full.rpartition(".")[2], line=target.lineno, call=call)
    if full.startswith("torch.optim.lr_scheduler."):
        found.schedulers.append(made)
    elif full.startswith("torch.optim.swa_utils."):
        if made.kind in ("AveragedModel", "SWALR"):
            (found.averages if made.kind == "AveragedModel" else found.schedulers).append(made)
    elif full.startswith("torch.optim."):
        found.optimizers.append(made)
    elif made.kind == "GradScaler":
        found.scalers.append(made)
    elif made.kind in ("DataLoader", "StatefulDataLoader"):
        found.loaders.append(made)


def _see_call(script: Script, call: ast.Call, found: Facts) -> None:
    full, line = script.full_name(call.func), call.lineno
    method = call.func.attr if isinstance(call.func, ast.Attribute) else full.rpartition(".")[2]
    if full in DISTRIBUTED or full.startswith("torch.distributed."):
        found.distributed.append((full.rpartition(".")[2], line))
    if full == "torch.save" or method in SAVES:
        found.saves.append(line)
        if any(isinstance(each, ast.For | ast.While) for each in script.above(call)):
            found.saves_in_loop.append(line)
    if full == "torch.load" or method in LOADS:
        found.loads.append(line)
    if full == "torch.compile":
        found.compiles = True
    words = {word.arg: word.value for word in call.keywords}
    told = words.get("streaming")
    if isinstance(told, ast.Constant) and told.value is True:
        found.streams.append(Stream(line=line, has_state=True, asks=True))  # as `datasets` makes them


def _stream(script: Script, node: ast.ClassDef) -> Stream:
    methods = {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef)}
    asks = any(
        script.full_name(each.func).rpartition(".")[2] == "get_worker_info"
        for each in ast.walk(script.tree)
        if isinstance(each, ast.Call)
    )
    return Stream(line=node.lineno, has_state={"state_dict", "load_state_dict"} <= methods, asks=asks)


def _loops(script: Script, found: Facts) -> Iterator[Loop]:
    """Each innermost loop in which an optimizer is stepped, by name or through a scaler."""
    steppers = {made.name for made in found.optimizers} | {made.name for made in found.scalers}
    by_loop: dict[ast.For | ast.While, list[ast.Call]] = {}
    for node in ast.walk(script.tree):
        if is_method(node, "step") and root_of(node.func.value) in steppers:
            loop = next((each for each in script.above(node) if isinstance(each, ast.For | ast.While)), None)
            if loop is not None:
                by_loop.setdefault(loop, []).append(node)
    for loop, steps in by_loop.items():
        above = script.parents[loop]
        backwards = [node for node in ast.walk(loop) if is_method(node, "backward")]
        outer = above if isinstance(above, ast.For) and loop in above.body else None
        ordered = sorted(steps, key=lambda call: call.lineno)
        yield Loop(
            inner=loop,
            outer=outer,
            steps=tuple(ordered),
            backwards=tuple(sorted(backwards, key=lambda call: call.lineno)),
        )


def _trainings(script: Script, found: Facts) -> Iterator[ast.For | ast.While]:
    """Loops over the whole training: those in which an optimizer makes steps, or a session gives epochs or batches."""
    yield from (loop.outer or loop.inner for loop in found.loops)
    if not found.has_session or found.loops:
        return
    given = [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.For) and any(is_method(each, "step") for each in ast.walk(node))
    ]
    yield from (node for node in given if not any(each in given for each in script.above(node)))


def batches_in(around: ast.For | ast.While) -> ast.For | ast.While:
    """The loop over batches in one over the epochs of a session; or the same."""
    loops = [each for each in around.body if isinstance(each, ast.For)]
    return next((each for each in loops if any(is_method(node, "step") for node in ast.walk(each))), around)


def _is_ranked(script: Script, node: ast.AST, around: ast.AST) -> bool:
    """Whether a condition speaks of ranks."""
    for each in script.above(node):
        if each is around:
            return False
        if isinstance(each, ast.If) and any(
            word in script.text(each.test).lower() for word in ("rank", "main", "master")
        ):
            return True
    return False

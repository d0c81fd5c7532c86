"""Frameworks, known by their imports: those with an integration change by a line or two, the others are told."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sublet.cli.work.script.edits import CannotConvert, Edits
from sublet.cli.work.script.extent import counted
from sublet.cli.work.script.reading import Script, is_method, last_of, statement_of

__all__ = ["OfFramework", "flags_of", "known", "of_framework", "stay_alone"]

INSTEAD = {
    "ray": "start it as your Ray job; or move its loop into a script of torch, and convert that",
    "torchft": "take torchft's manager and its process group out: a session does what they do",
    "adaptdl": "take adaptdl out: `train.session(...)` in place of its data parallel model and its loops",
    "deepspeed": "a plain optimizer and loop; `parallel: {shards: on}` in the job file is ZeRO's first stage",
    "horovod": "take horovod out: a session sums the gradients of all workers",
    "torch.distributed.fsdp": "the bare model; `parallel: {shards: on}` in the job file, or stages",
    "torch.distributed._composable": "the bare model; `parallel: {shards: on}` in the job file",
    "fairscale": "the bare model; `parallel: {shards: on}` in the job file",
    "colossalai": "a plain model, optimizer and loop",
    "megatron": "a plain model, optimizer and loop",
    "torch_xla": "a machine with GPUs or CPUs: a session knows no TPUs",
    "composer": "a plain loop; sublet has no integration for Composer",
    "lightning_fabric": "a plain loop: Fabric's backward() and setup() are what a session does",
    "ignite": "a plain loop; sublet has no integration for Ignite",
    "fastai": "a plain loop; sublet has no integration for fastai",
    "tensorflow": "a training script of torch",
    "jax": "a training script of torch",
}
NO_GROUP = "take it out: a session is data parallel by itself, at any width"
WRAPS = {
    "DistributedDataParallel": "the bare model: a session sums the gradients of all workers",
    "DDP": "the bare model: a session sums the gradients of all workers",
    "FullyShardedDataParallel": "the bare model; `parallel: {shards: on}` in the job file",
    "fully_shard": "the bare model; `parallel: {shards: on}` in the job file",
    "DistributedSampler": "shuffle=True of the loader: a session deals each sample once",
    "init_process_group": NO_GROUP,
}
JOINS = ("init_distributed_mode", "init_distributed_device", "init_distributed", "setup_distributed", "dist_init")
LIGHTNING = ("lightning", "pytorch_lightning", "lightning.pytorch")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfFramework:
    """The new text, by its integration."""

    name: str
    text: str


def known(script: Script) -> None:
    """CannotConvert for a framework that no session goes under."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            if isinstance(node, ast.ImportFrom) and node.level:
                continue
            for name in names:
                found = next((each for each in INSTEAD if name == each or name.startswith(f"{each}.")), None)
                if found is not None:
                    raise CannotConvert(f"{found} drives its loop", node.lineno, INSTEAD[found])
                if name.startswith(("lightning.fabric", "lightning_fabric")) or (
                    isinstance(node, ast.ImportFrom)
                    and name == "lightning"
                    and any(each.name == "Fabric" for each in node.names)
                ):
                    raise CannotConvert("Fabric drives its loop", node.lineno, INSTEAD["lightning_fabric"])
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.Call)
            and (name := script.full_name(node.func).rsplit(".", 1)[-1]) in WRAPS
            and not _under_flag(script, node)
        ):
            raise CannotConvert(f"{name}: the script is distributed already", node.lineno, WRAPS[name])
        if isinstance(node, ast.Call) and last_of(node.func) == "DataParallel" and not _under_flag(script, node):
            raise CannotConvert("DataParallel around the model", node.lineno, "the bare model: a worker has one GPU")


def _under_flag(script: Script, node: ast.AST) -> bool:
    """Whether it is done only if a setting says so: that one is left off."""
    return any(isinstance(each, ast.If | ast.IfExp) for each in script.above(node))


def flags_of(script: Script) -> list[ast.expr]:
    """`ddp = int(os.environ.get("RANK", -1)) != -1`: what is distributed only if this says so is not, in a session."""
    asked = {
        node.id
        for call in ast.walk(script.tree)
        if isinstance(call, ast.Call) and last_of(call.func) in WRAPS
        for each in script.above(call)
        if isinstance(each, ast.If | ast.IfExp)
        for node in ast.walk(each.test)
        if isinstance(node, ast.Name)
    }
    return [
        node.value
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign)
        and last_of(node.targets[0]) in asked
        and isinstance(node.value, ast.Compare)
        and any(word in script.text(node.value) for word in ("RANK", "WORLD_SIZE"))
    ]


def stay_alone(script: Script, edits: Edits) -> None:
    """`init_distributed_mode(args)` finds no RANK, and leaves it at one process: it is there again after that."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call) and last_of(node.func) in JOINS:
            line = statement_of(script, node)
            which = '("RANK", "WORLD_SIZE", "LOCAL_RANK")'
            hides = f"hidden = {{name: os.environ.pop(name) for name in {which} if name in os.environ}}"
            if "os" not in script.modules:
                edits.before(line, "import os")
            edits.before(line, hides)
            edits.after(line, "os.environ.update(hidden)")


def of_framework(script: Script) -> OfFramework | None:
    """None if the loop is the script's own."""
    modules = script.modules
    if any(name.startswith("accelerate.Accelerator") or name == "accelerate" for name in modules):
        return _accelerate(script)
    if any(name.split(".")[0] in LIGHTNING for name in modules):
        return _lightning(script)
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.Call)
            and script.full_name(node.func).startswith("transformers.")
            and last_of(node.func).endswith("Trainer")
        ):
            return _transformers(script, node)
        if isinstance(node, ast.ClassDef) and any(
            script.full_name(base) == "transformers.Trainer" for base in node.bases
        ):
            return _transformers(script, node)
        if isinstance(node, ast.Call) and script.full_name(node.func).split(".")[0] == "trl":
            raise CannotConvert(
                f"{last_of(node.func)} of trl has a loop of its own", node.lineno, "the Trainer of transformers"
            )
    return None


def _import_of(script: Script, module: tuple[str, ...], name: str) -> tuple[ast.ImportFrom, ast.alias] | None:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "") in module:
            for alias in node.names:
                if alias.name == name:
                    return node, alias
    return None


def _moved(script: Script, edits: Edits, module: tuple[str, ...], name: str, ours: str) -> None:
    """`from theirs import A, Name` without it, and `from ours import Name`."""
    found = _import_of(script, module, name)
    if found is None:
        raise CannotConvert(
            f"{name} is not imported by its name", 1, f"from {module[0]} import {name}; then convert again"
        )
    node, alias = found
    rest = [each for each in node.names if each is not alias]
    said = f"{name} as {alias.asname}" if alias.asname else name
    if not rest:
        edits.replace(node, f"from {ours} import {said}")
        return
    others = ", ".join(f"{each.name} as {each.asname}" if each.asname else each.name for each in rest)
    if node.end_lineno != node.lineno:
        others = "(\n" + "".join(f"    {each},\n" for each in others.split(", ")) + ")"
    edits.replace(node, f"from {node.module} import {others}")
    top = [each for each in script.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    where = top[-1] if top and node in top else node
    if where is not node:
        edits.after(where, "")
    else:
        edits.after(where, "")
    edits.after(where, f"from {ours} import {said}")


def _transformers(script: Script, node: ast.Call | ast.ClassDef) -> OfFramework:
    name = last_of(node.func) if isinstance(node, ast.Call) else "Trainer"
    if name != "Trainer":
        raise CannotConvert(
            f"{name} has no integration", node.lineno, "transformers.Trainer: docs/guides/hugging-face.md"
        )
    edits = Edits(script)
    _moved(script, edits, ("transformers", "transformers.trainer"), "Trainer", "sublet.integrations.transformers")
    return OfFramework(name="transformers", text=edits.result())


def _lightning(script: Script) -> OfFramework:
    calls = [node for node in ast.walk(script.tree) if isinstance(node, ast.Call) and last_of(node.func) == "Trainer"]
    if len(calls) != 1:
        line = calls[1].lineno if calls else 1
        for node in ast.walk(script.tree):
            if isinstance(node, ast.Call) and last_of(node.func) == "LightningCLI":
                raise CannotConvert(
                    "LightningCLI makes the Trainer",
                    node.lineno,
                    'trainer_defaults={"strategy": SubletStrategy(global_batch=...)}: docs/guides/lightning.md',
                )
        raise CannotConvert(
            f"{len(calls) or 'no'} Trainer is made here", line, "one `L.Trainer(...)`: docs/guides/lightning.md"
        )
    call = calls[0]
    words = {word.arg: word.value for word in call.keywords}
    refused = {
        "strategy": "SubletStrategy(global_batch=...) in its place",
        "accumulate_grad_batches": "leave it out, and say the whole batch: SubletStrategy(global_batch=...)",
        "limit_train_batches": "a dataset of that many samples",
        "overfit_batches": "a dataset of that many samples",
    }
    for word, do in refused.items():
        if word in words and script.text(words[word]) not in ("1", "None", '"auto"', "'auto'", "1.0", "0"):
            raise CannotConvert(f"Trainer({word}=...)", words[word].lineno, f"{do}: docs/guides/lightning.md")
    edits = Edits(script)
    batch = _batch_of_lightning(script, call)
    if "strategy" in words:
        edits.replace(words["strategy"], f"SubletStrategy(global_batch={batch})")
    else:
        _put_word(script, edits, call, f"strategy=SubletStrategy(global_batch={batch})")
    imports = [each for each in script.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    edits.after(imports[-1], "")
    edits.after(imports[-1], "from sublet.integrations.lightning import SubletStrategy")
    return OfFramework(name="lightning", text=edits.result())


def _batch_of_lightning(script: Script, trainer: ast.Call) -> str:
    """The batch size of the first loader, where the Trainer's line can say it, too."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call) and last_of(node.func) == "DataLoader":
            given = next(
                (w.value for w in node.keywords if w.arg == "batch_size"), node.args[1] if len(node.args) > 1 else None
            )
            if given is None:
                return "1"
            same = script.scope_of(node) is script.scope_of(trainer) or isinstance(script.scope_of(node), ast.Module)
            if isinstance(given, ast.Constant) or (same and "self" not in script.text(given)):
                return script.text(given)
            break
    raise CannotConvert(
        "the batch of its training loader is not said where the Trainer is made",
        trainer.lineno,
        "strategy=SubletStrategy(global_batch=...): docs/guides/lightning.md",
    )


def _put_word(script: Script, edits: Edits, call: ast.Call, text: str) -> None:
    given = [*call.args, *(word.value for word in call.keywords)]
    if not given:
        edits.insert(call.end_lineno or 0, (call.end_col_offset or 1) - 1, text)
        return
    last = max(given, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))
    if (last.end_lineno or 0) != (call.end_lineno or 0):
        line = script.lines[(last.lineno) - 1]
        indent = line[: len(line) - len(line.lstrip())]
        first = min(given, key=lambda each: each.lineno)
        line = script.lines[first.lineno - 1]
        indent = line[: len(line) - len(line.lstrip())]
        edits.insert(last.end_lineno or 0, last.end_col_offset or 0, f",\n{indent}{text}")
        return
    edits.insert(last.end_lineno or 0, last.end_col_offset or 0, f", {text}")


def _accelerate(script: Script) -> OfFramework:
    edits = Edits(script)
    made = [
        node for node in ast.walk(script.tree) if isinstance(node, ast.Call) and last_of(node.func) == "Accelerator"
    ]
    if not made:
        raise CannotConvert("no Accelerator is made here", 1, "the script that makes it: docs/guides/accelerate.md")
    for word in made[0].keywords:
        if (
            word.arg
            and ("plugin" in word.arg or word.arg == "parallelism_config")
            and script.text(word.value) != "None"
        ):
            raise CannotConvert(
                f"Accelerator({word.arg}=...)", word.value.lineno, "an Accelerator without: docs/guides/accelerate.md"
            )
    _moved(script, edits, ("accelerate", "accelerate.accelerator"), "Accelerator", "sublet.integrations.accelerate")
    name = next(
        (
            last_of(t)
            for n in ast.walk(script.tree)
            if isinstance(n, ast.Assign) and any(each is made[0] for each in ast.walk(n.value))
            for t in n.targets
        ),
        "",
    )
    for node in ast.walk(script.tree):
        if is_method(node, "load_state") and last_of(node.func.value) == name and not _under_flag(script, node):
            raise CannotConvert(
                "it resumes by load_state()", node.lineno, "take it out: the session goes on where it was"
            )
    loops = [
        loop
        for loop in ast.walk(script.tree)
        if isinstance(loop, ast.For)
        and any(is_method(node, "backward") and last_of(node.func.value) == name for node in ast.walk(loop))
    ]
    for loop in loops:
        found = counted(script, loop)
        if found is None or found.call is None:
            continue
        if not any(each is not loop and each in loops and counted(script, each) is None for each in ast.walk(loop)):
            raise CannotConvert(
                "the loop counts steps, and asks an iterator for its batches",
                loop.lineno,
                f"`for epoch in {name}.epochs(n)`, and in it `for batch in loader`: docs/guides/accelerate.md",
            )
        edits.replace(found.call, f"{name}.epochs({found.turns})")
        return OfFramework(name="accelerate", text=edits.result())
    line = loops[0].lineno if loops else made[0].lineno
    raise CannotConvert(
        "no `for epoch in range(n)` is around its batches", line, f"for epoch in {name or 'accelerator'}.epochs(n):"
    )

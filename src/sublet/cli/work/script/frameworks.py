"""Frameworks, known by their imports: those with an integration change by a line or two, the others are told."""

from __future__ import annotations

import ast

from sublet.cli.work.script.edits import Edits
from sublet.cli.work.script.extent import counted
from sublet.cli.work.script.reading import CannotConvert, Script, is_method, last_of, statement_of, stores_in

__all__ = ["known", "leave_group", "of_framework"]

PLAIN = "a plain model, optimizer and loop"
SHARDS = "the bare model; `parallel: {shards: on}` in the job file"
BARE = "the bare model: a session sums the gradients of all workers"
INSTEAD = {
    "ray": "start it as your Ray job; or move its loop into a script of torch, and convert that",
    "deepspeed": "a plain optimizer and loop; `parallel: {shards: on}` in the job file is ZeRO's first stage",
    "torch_xla": "a machine with GPUs or CPUs: a session knows no TPUs",
    **dict.fromkeys(("torch.distributed.fsdp", "torch.distributed._composable", "fairscale"), SHARDS),
    **dict.fromkeys(("torchft", "adaptdl", "horovod", "colossalai", "megatron", "composer", "ignite", "fastai"), PLAIN),
    **dict.fromkeys(("lightning.Fabric", "lightning.fabric", "lightning_fabric"), PLAIN),
    **dict.fromkeys(("tensorflow", "jax"), "a training script of torch"),
}
WRAPS = {
    **dict.fromkeys(("DistributedDataParallel", "DDP", "DataParallel"), BARE),
    **dict.fromkeys(("FullyShardedDataParallel", "fully_shard"), SHARDS),
    "DistributedSampler": "shuffle=True of the loader: a session deals each sample once",
    "init_process_group": "take it out: a session is data parallel by itself, at any width",
}
JOINS = ("init_distributed_mode", "init_distributed_device", "init_distributed", "setup_distributed", "dist_init")


def known(script: Script) -> None:
    """CannotConvert for a framework that no session goes under."""
    for node in script.nodes:
        names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [] if node.level else [f"{node.module}.{name}" for name in names]
        for found in [each for each in INSTEAD for name in names if f"{name}.".startswith(f"{each}.")]:
            raise CannotConvert(f"{found} drives its loop", statement_of(script, node).lineno, INSTEAD[found])
    for call in script.calls:
        name = script.full_name(call.func).rsplit(".", 1)[-1] or last_of(call.func)
        if name in WRAPS and not _under_flag(script, call):
            raise CannotConvert(f"{name}: the script is distributed already", call.lineno, WRAPS[name])


def _under_flag(script: Script, node: ast.AST) -> bool:
    """Whether it is done only if a setting says so: that one is left off."""
    return any(isinstance(each, ast.If | ast.IfExp) for each in script.above(node))


def leave_group(script: Script, edits: Edits) -> None:
    """What a script does only if it is one of many processes, it does not do in a session."""
    around = [each for call in script.calls if last_of(call.func) in WRAPS for each in script.above(call)]
    tests = [node for each in around if isinstance(each, ast.If | ast.IfExp) for node in ast.walk(each.test)]
    asked = {node.id for node in tests if isinstance(node, ast.Name)}
    for target, value, _ in stores_in(script.tree):  # ddp = int(os.environ.get("RANK", -1)) != -1
        text = script.text(value) if last_of(target) in asked and isinstance(value, ast.Compare) else ""
        if value is not None and ("RANK" in text or "WORLD_SIZE" in text):
            edits.replace(value, "False")
    for call in script.calls:  # init_distributed_mode(args) finds no RANK, and leaves it at one process
        if last_of(call.func) in JOINS:
            line, which = statement_of(script, call), '("RANK", "WORLD_SIZE", "LOCAL_RANK")'
            if "os" not in script.modules:
                edits.before(line, "import os")
            edits.before(line, f"hidden = {{name: os.environ.pop(name) for name in {which} if name in os.environ}}")
            edits.after(line, "os.environ.update(hidden)")
            for name in _asking(script):
                edits.after(line, f"{name} = lambda: False  # not of a group of its own")


def _asking(script: Script) -> list[str]:
    """Functions of an imported file that say whether a group is initialized: a session's is."""
    found = []
    for name in sorted(name for name in script.modules if name.isidentifier() and name in script.names):
        path = script.path.resolve().with_name(f"{name}.py")
        for function in Script.read(path).functions if path.is_file() else ():
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            if not function.args.args and any(last_of(call.func) == "is_initialized" for call in calls):
                found.append(f"{name}.{function.name}")
    return found


# ------------------------------------------------------------------------------------------- with an integration


def of_framework(script: Script) -> tuple[str, str] | None:
    """Its name, and the new text; None if the loop is the script's own."""
    edits, roots = Edits(script), {name.split(".")[0] for name in script.modules}
    if script.modules & {"accelerate", "accelerate.Accelerator"}:
        name = "accelerate"
        _accelerate(script, edits)
    elif roots & {"lightning", "pytorch_lightning"}:
        name = "lightning"
        _lightning(script, edits)
    elif roots & {"transformers", "trl"} and _trains_by_transformers(script):
        name = "transformers"
        _move(script, edits, "transformers", "Trainer")
    else:
        return None
    return name, edits.result()


def _trains_by_transformers(script: Script) -> bool:
    if any(script.full_name(base) == "transformers.Trainer" for node in script.classes for base in node.bases):
        return True
    made = [script.full_name(call.func).split(".") for call in script.calls]
    trainers = [each[-1] for each in made if each[0] == "trl" or (each[0] == "transformers" and "Trainer" in each[-1])]
    if any(name != "Trainer" for name in trainers):
        do = "transformers.Trainer: docs/guides/hugging-face.md"
        raise CannotConvert(f"{max(trainers)} has no integration", 1, do)
    return bool(trainers)


def _move(script: Script, edits: Edits, module: str, name: str) -> None:
    """`from theirs import A, Name` without it, and `from ours import Name`."""
    for node in [node for node in script.nodes if isinstance(node, ast.ImportFrom)]:
        said = {each.name: f"{each.name} as {each.asname}" if each.asname else each.name for each in node.names}
        if name not in said or (node.module or "").split(".")[0] != module:
            continue
        line = f"from sublet.integrations.{module} import {said.pop(name)}"
        if not said:
            edits.replace(node, line)
            return
        others = ", ".join(said.values())
        if node.end_lineno != node.lineno:
            others = "(\n" + "".join(f"    {each},\n" for each in said.values()) + ")"
        edits.replace(node, f"from {node.module} import {others}")
        _import(script, edits, node, line)
        return
    raise CannotConvert(f"{name} is not imported by its name", 1, f"from {module} import {name}; then convert again")


def _import(script: Script, edits: Edits, node: ast.stmt | None, line: str) -> None:
    top = [each for each in script.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    where = node if node is not None and node not in top else top[-1]
    edits.after(where, "")
    edits.after(where, line)


def _lightning(script: Script, edits: Edits) -> None:
    guide = "docs/guides/lightning.md"
    calls = [node for node in script.calls if last_of(node.func) == "Trainer"]
    if len(calls) != 1:
        by_command = [node.lineno for node in script.calls if last_of(node.func) == "LightningCLI"]
        why = "LightningCLI makes the Trainer" if by_command else f"{len(calls) or 'no'} Trainer is made here"
        do = f'`L.Trainer(...)`, or trainer_defaults={{"strategy": SubletStrategy(global_batch=...)}}: {guide}'
        raise CannotConvert(why, [*by_command, *(call.lineno for call in calls), 1][0], do)
    call, words = calls[0], {word.arg: word.value for word in calls[0].keywords}
    for word in ("strategy", "accumulate_grad_batches"):
        if word in words and script.text(words[word]).strip("\"'") not in ("1", "None", "auto"):
            do = f"leave it out, and say the whole batch: SubletStrategy(global_batch=...): {guide}"
            raise CannotConvert(f"Trainer({word}=...)", words[word].lineno, do)
    strategy = f"SubletStrategy(global_batch={_batch_of_lightning(script, call)})"
    given = sorted([*call.args, *words.values()], key=lambda each: (each.lineno, each.col_offset))
    if "strategy" in words:
        edits.replace(words["strategy"], strategy)
    elif not given:
        edits.insert(call.end_lineno or 0, (call.end_col_offset or 1) - 1, f"strategy={strategy}")
    else:
        first, last = script.lines[given[0].lineno - 1], given[-1]
        space = f"\n{first[: len(first) - len(first.lstrip())]}" if last.end_lineno != call.end_lineno else " "
        edits.insert(last.end_lineno or 0, last.end_col_offset or 0, f",{space}strategy={strategy}")
    _import(script, edits, None, "from sublet.integrations.lightning import SubletStrategy")


def _batch_of_lightning(script: Script, trainer: ast.Call) -> str:
    """The batch size of the first loader, where the Trainer's line can say it, too."""
    loader = next((node for node in script.calls if last_of(node.func) == "DataLoader"), None)
    if loader is not None:
        given = [*(word.value for word in loader.keywords if word.arg == "batch_size"), *loader.args[1:2]]
        same = script.scope_of(loader) in (script.scope_of(trainer), script.tree)
        if not given or isinstance(given[0], ast.Constant) or (same and "self" not in script.text(given[0])):
            return script.text(given[0]) if given else "1"
    why = "the batch of its training loader is not said where the Trainer is made"
    raise CannotConvert(why, trainer.lineno, "strategy=SubletStrategy(global_batch=...): docs/guides/lightning.md")


def _accelerate(script: Script, edits: Edits) -> None:
    guide = "docs/guides/accelerate.md"
    made = [node for node in script.calls if last_of(node.func) == "Accelerator"]
    if not made:
        raise CannotConvert("no Accelerator is made here", 1, f"the script that makes it: {guide}")
    _move(script, edits, "accelerate", "Accelerator")
    names = [last_of(target) for target, value, _ in stores_in(script.tree) if value and made[0] in ast.walk(value)]
    name = names[0] if names else "accelerator"
    own = [node for node in script.calls if isinstance(node.func, ast.Attribute) and last_of(node.func.value) == name]
    restores = [node for node in own if is_method(node, "load_state")]
    for node in restores:
        if not _under_flag(script, node):
            do = "take it out: the session goes on where it was"
            raise CannotConvert("it resumes by load_state()", node.lineno, do)
    backwards = {node for node in own if is_method(node, "backward")}
    loops = [node for node in script.nodes if isinstance(node, ast.For) and backwards & set(ast.walk(node))]
    found = [(loop, each) for loop in loops if (each := counted(script, loop)) is not None and each.call is not None]
    do = f"`for epoch in {name}.epochs(n):`, and in it `for batch in loader:`: {guide}"
    if not found:
        line = loops[0].lineno if loops else made[0].lineno
        raise CannotConvert("no `for epoch in range(n)` is around its batches", line, do)
    loop, extent = found[0]
    inner = [each for each in loops if each is not loop and each in ast.walk(loop)]
    if not any(counted(script, each) is None for each in inner):
        why = "the loop counts steps, and asks an iterator for its batches"
        raise CannotConvert(why, loop.lineno, do)
    if extent.start and not restores:  # load_state() ends a script that resumes by itself, with its reason
        raise CannotConvert(f"the epochs begin at `{extent.start}`", loop.lineno, do)
    if extent.call is not None:
        edits.replace(extent.call, f"{name}.epochs({extent.turns})")
    if extent.first != "0" and extent.name:
        edits.before(loop.body[0], f"{extent.name} += {extent.first}")

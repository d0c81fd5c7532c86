"""Frameworks, known by their imports: those with an integration change by a line or two, the others are refused."""

from __future__ import annotations

import ast
import re

from sublet.cli.work.script.edits import Edits, begin_of, end_of
from sublet.cli.work.script.extent import counted
from sublet.cli.work.script.reading import CannotConvert, Script, is_method, last_of, stores_in

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
    "init_process_group": "take it out: a session is data parallel by itself, at any number of workers",
}
JOINS = ("init_distributed_mode", "init_distributed_device", "init_distributed", "setup_distributed", "dist_init")
HIDDEN = 'hidden = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in os.environ}'
LIGHTNING, ACCELERATE = "docs/guides/lightning.md", "docs/guides/accelerate.md"


def known(script: Script) -> None:
    """CannotConvert for a framework that no session goes under."""
    for found in [each for each in INSTEAD if any(f"{name}.".startswith(f"{each}.") for name in script.modules)]:
        imports = [node for node in script.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        word = found.rsplit(".", 1)[-1]
        line = next(node.lineno for node in imports if re.search(rf"\b{word}\b", script.text(node)))
        raise CannotConvert(f"{found} runs the training loop", line, INSTEAD[found])
    for call in script.calls:
        name = script.full_name(call.func).rsplit(".", 1)[-1] or last_of(call.func)
        if name in WRAPS and not _under_flag(script, call):
            raise CannotConvert(f"{name}: the script is distributed already", call.lineno, WRAPS[name])


def _under_flag(script: Script, node: ast.AST) -> bool:
    """Whether it is done only under a condition: in a session it is left off."""
    return any(isinstance(each, ast.If | ast.IfExp) for each in script.above(node))


def leave_group(script: Script, edits: Edits, outer: ast.stmt, first: ast.stmt | None) -> None:
    """A script that may join a process group finds no `RANK` until its session is made, and runs as one process."""
    called = {last_of(call.func) for call in script.calls}
    if first is not None and called & {*JOINS, "init_process_group"}:
        for line in ("" if "os" in script.modules else "import os", HIDDEN):
            edits.after(first, line)
        edits.before(outer, "os.environ.update(hidden)")
    for name in _asking(script) if called & {*JOINS} else ():
        edits.before(outer, f"{name} = lambda: False  # the group is the session's")


def _asking(script: Script) -> list[str]:
    """Functions of an imported file that say whether a process group is there."""
    found = []
    for name in sorted(name for name in script.modules if name.isidentifier() and name in script.names):
        path = script.path.resolve().with_name(f"{name}.py")
        for function in Script.read(path).functions if path.is_file() else ():
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            if not function.args.args and any(last_of(call.func) == "is_initialized" for call in calls):
                found.append(f"{name}.{function.name}")
    return found


def of_framework(script: Script) -> tuple[str, str] | None:
    """Its name, and the new text; None if the loop is the script's own."""
    edits, roots = Edits(script), {name.split(".")[0] for name in script.modules}
    if script.modules & {"accelerate", "accelerate.Accelerator"}:
        _accelerate(script, edits)
        return "accelerate", edits.result()
    if roots & {"lightning", "pytorch_lightning"}:
        _lightning(script, edits)
        return "lightning", edits.result()
    made = [script.full_name(call.func).split(".") for call in script.calls]
    made += [script.full_name(base).split(".") for node in script.classes for base in node.bases]
    trainers = {each[-1] for each in made if each[0] in ("trl", "transformers") and each[-1].endswith("Trainer")}
    for name in trainers - {"Trainer"}:
        raise CannotConvert(f"{name} has no integration", 1, "transformers.Trainer: docs/guides/hugging-face.md")
    if not trainers:
        return None
    _move(script, edits, "transformers", "Trainer")
    return "transformers", edits.result()


def _move(script: Script, edits: Edits, module: str, name: str) -> None:
    """`from theirs import A, Name` without it, and `from ours import Name`."""
    for node in [node for node in script.nodes if isinstance(node, ast.ImportFrom)]:
        names = node.names if (node.module or "").split(".")[0] == module else []
        for before, alias, after in zip([None, *names], names, [*names[1:], None], strict=False):
            if alias.name == name:
                line = f"from sublet.integrations.{module} import {script.text(alias)}"
                if after is not None:
                    edits.put(begin_of(alias), begin_of(after), "")
                elif before is not None:
                    edits.put(end_of(before), end_of(alias), "")
                else:
                    edits.replace(node, line)
                    return
                edits.add_import(line)
                return
    raise CannotConvert(f"{name} is not imported by its name", 1, f"from {module} import {name}; then convert again")


def _lightning(script: Script, edits: Edits) -> None:
    calls = [node for node in script.calls if last_of(node.func) == "Trainer"]
    if len(calls) != 1:
        by_command = [node.lineno for node in script.calls if last_of(node.func) == "LightningCLI"]
        why = "LightningCLI makes the Trainer" if by_command else f"{len(calls) or 'no'} Trainer is made here"
        do = f'`L.Trainer(...)`, or trainer_defaults={{"strategy": SubletStrategy(global_batch=...)}}: {LIGHTNING}'
        raise CannotConvert(why, [*by_command, *(call.lineno for call in calls), 1][0], do)
    call, words = calls[0], {word.arg: word.value for word in calls[0].keywords}
    for word in ("strategy", "accumulate_grad_batches"):
        if word in words and script.text(words[word]).strip("\"'") not in ("1", "None", "auto"):
            do = f"leave it out, and say the whole batch: SubletStrategy(global_batch=...): {LIGHTNING}"
            raise CannotConvert(f"Trainer({word}=...)", words[word].lineno, do)
    strategy = f"SubletStrategy(global_batch={_batch_of_lightning(script, call)})"
    if "strategy" in words:
        edits.replace(words["strategy"], strategy)
    else:
        first = [*call.args, *call.keywords][:1]
        place = begin_of(first[0]) if first else (call.end_lineno or 0, (call.end_col_offset or 1) - 1)
        space = " " if place[0] == call.lineno else "\n" + " " * place[1]
        edits.put(place, place, f"strategy={strategy}{f',{space}' if first else ''}")
    edits.add_import("from sublet.integrations.lightning import SubletStrategy")


def _batch_of_lightning(script: Script, trainer: ast.Call) -> str:
    """The batch size of the first loader, where the Trainer's line can say it, too."""
    for loader in [node for node in script.calls if last_of(node.func) == "DataLoader"][:1]:
        given = [*(word.value for word in loader.keywords if word.arg == "batch_size"), *loader.args[1:2]]
        same = script.scope_of(loader) in (script.scope_of(trainer), script.tree)
        if not given or isinstance(given[0], ast.Constant) or (same and "self" not in script.text(given[0])):
            return script.text(given[0]) if given else "1"
    why = "the batch size of the training loader is not known where the Trainer is made"
    raise CannotConvert(why, trainer.lineno, f"strategy=SubletStrategy(global_batch=...): {LIGHTNING}")


def _accelerate(script: Script, edits: Edits) -> None:
    made = [node for node in script.calls if last_of(node.func) == "Accelerator"]
    if not made:
        raise CannotConvert("no Accelerator is made here", 1, f"the script that makes it: {ACCELERATE}")
    _move(script, edits, "accelerate", "Accelerator")
    names = [last_of(target) for target, value, _ in stores_in(script.tree) if value and made[0] in ast.walk(value)]
    name = names[0] if names else "accelerator"
    own = [node for node in script.calls if isinstance(node.func, ast.Attribute) and last_of(node.func.value) == name]
    restores = [node for node in own if is_method(node, "load_state")]
    for node in [each for each in restores if not _under_flag(script, each)]:
        raise CannotConvert("it resumes by load_state()", node.lineno, "take it out: the session resumes by itself")
    backwards = {node for node in own if is_method(node, "backward")}
    loops = [node for node in script.nodes if isinstance(node, ast.For) and backwards & set(ast.walk(node))]
    found = [(loop, each) for loop in loops if (each := counted(script, loop)) is not None and each.call is not None]
    line, why = loops[0].lineno if loops else made[0].lineno, "no `for epoch in range(n)` is around its batches"
    for loop, extent in found[:1]:
        inner = [each for each in loops if each is not loop and each in ast.walk(loop)]
        line, why = loop.lineno, ""
        if not any(counted(script, each) is None for each in inner):
            why = "the loop counts steps, and asks an iterator for its batches"
        elif extent.start and not restores:  # load_state() ends a script that resumes by itself, with its reason
            why = f"the epochs begin at `{extent.start}`"
        elif extent.call is not None:
            edits.replace(extent.call, f"{name}.epochs({extent.turns})")
            if extent.first and extent.name:
                edits.before(loop.body[0], f"{extent.name} += {extent.first}")
    if why:
        do = f"`for epoch in {name}.epochs(n):`, and in it `for batch in loader:`: {ACCELERATE}"
        raise CannotConvert(why, line, do)

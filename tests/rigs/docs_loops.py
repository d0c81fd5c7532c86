"""Every training loop that the documentation shows, and what its names stand for.

A loop is a block of Python, or the new side of a diff, that trains. It runs as it stands there, but for the numbers of
SMALLER; what it does not say itself (`model`, `loader`, `loss_fn`, ...) is made by NAMES. So a new loop is tried with
all others, and one that asks for a name that nobody has given a meaning here is an error.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import re
import symtable
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from sublet import train
from sublet_lab.grid.model import BLOCKS, VOCAB, WIDTH, Block, Last

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```(python|diff)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
TRAINS = re.compile(r"session\(|checkpointed\(|\.step\(|\.backward\(|\.fit\(|\.train\(\)|sublet\.integrations")
WHOLE = re.compile(r"tests/adoption/scripts/(\w+)")  # where a page shows a part of a script, it says where all of it is

SAMPLES, BATCH, FEATURES, STEPS = 49, 12, 4, 45  # the last batch of an epoch is one sample: not every worker has any
SMALLER = {  # so that a loop takes a second; and what stands for something that is not here
    "512": str(BATCH),
    "10_000": str(STEPS),
    "micro_batch=128": "micro_batch=5",
    "micro_batch=8": "micro_batch=2",
    "num_workers=4": "num_workers=1",
    "steps_in_epoch == 1000": "steps_in_epoch == 4",
    "global_batch=64, batch_range=(64, 1024)": f"global_batch={BATCH}, batch_range=({BATCH}, {2 * BATCH})",
    "s.steps % 100": "s.steps % 10",
    '"s3://bucket/corpus"': "corpus",
    '"cuda", dtype=torch.float16': '"cpu", enabled=False',  # what rounds more is not what is looked for
    '"cuda"': '"cpu"',
    "model, optimizer, dataset = ...\n": "",
    "    ...\n    ck.tick": "    one_step(step)\n    ck.tick",
}
IN_WORDS = {  # what the guide says of a loop without showing it: one that it shows, with something else in it
    "steps": ("README-1", {"epochs=10": "steps=10_000, scheduler=scheduler, clip_norm=0.1"}),
    "rates": ("README-1", {"s.step(loss": 'optimizer.param_groups[0]["lr"] = 0.02 / (1 + s.steps); s.step(loss'}),
    "sampler": ("make-a-script-elastic-1", {"shuffle=True": "sampler=sampler"}),
    "sums": (
        "README-1",
        {"epochs=10": 'epochs=10, reduction="sum", extra_state=ema', "loss_fn(model, batch)": "summed(model, batch)"},
    ),
    "counted": (
        "make-a-script-elastic-1",
        {
            "epochs=10": 'epochs=10, reduction="counted"',
            "s.step(loss_fn(model, batch))": "s.step(**tokens(model, batch))",
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Loop:
    """One of the documentation; the same code on several pages is one."""

    name: str
    code: str
    script: str = ""  # of a framework: what is shown is a part of this one

    @property
    def kind(self) -> str:
        """How its width is changed."""
        if self.script:
            return "framework"
        return "own" if "checkpointed(" in self.code else "parts" if "train.Stages(" in self.code else "session"

    @property
    def has_epochs(self) -> bool:
        """Whether each of its epochs takes every sample once."""
        return "epochs=" in self.code and not any(each in self.code for each in ("steps_in_epoch", "sampler="))

    @property
    def grows(self) -> bool:
        """Whether the plan chooses its batch."""
        return "batch_range=" in self.code

    @property
    def asks_for(self) -> set[str]:
        """Names that it does not make itself."""
        module = symtable.symtable(self.code, self.name, "exec")
        made = {each.get_name() for each in module.get_symbols() if each.is_assigned() or each.is_imported()}
        return _asked(module) - made - set(dir(builtins))

    def run(self, directory: Path) -> dict[str, Any]:
        """Train; all names that there are in the end."""
        names = _named(self, directory)
        exec(compile(self.code, self.name, "exec"), names)  # noqa: S102 - our own documentation
        return names


@cache
def loops() -> dict[str, Loop]:
    """All of them, by name."""
    by_code: dict[str, Loop] = {}
    for page, text in _pages():
        for number, (_, kind, block) in enumerate(BLOCK.findall(text), 1):
            if TRAINS.search(block):
                code = textwrap.dedent(_new_side(block) if kind == "diff" else block)
                script = WHOLE.search(text) if "sublet.integrations." in code and "session(" not in code else None
                loop = Loop(f"{page}-{number}", code := _replaced(code, SMALLER), script[1] if script else "")
                by_code.setdefault(script[1] if script else ast.unparse(ast.parse(code)), loop)
    found = {loop.name: loop for loop in by_code.values()}
    for name, (of, changes) in IN_WORDS.items():
        found[name] = Loop(name, _replaced(found[of].code, changes | SMALLER))
    return found


def _asked(scope: symtable.SymbolTable) -> set[str]:
    """Names that are looked up outside of all functions and classes."""
    found = {each.get_name() for each in scope.get_symbols() if each.is_referenced() and each.is_global()}
    return found.union(*map(_asked, scope.get_children()))


def _pages() -> Iterator[tuple[str, str]]:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield path.stem, path.read_text()


def _replaced(code: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        code = code.replace(old, new)
    return code


def _new_side(diff: str) -> str:
    return "".join(line[1:] for line in diff.splitlines(keepends=True) if not line.startswith("-"))


# -------------------------------------------------------------------------------------- what the names stand for


def row(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A sample; its last feature says which it is."""
    rng = torch.Generator().manual_seed(number)
    x = torch.randn(FEATURES, generator=rng)
    x[-1] = number / SAMPLES
    return x, (x[:1] - x[1:2]).tanh()


def numbers(batch: Any) -> list[int]:
    """Which samples these are."""
    return [round(each) for each in (batch[0][:, -1] * SAMPLES).tolist()]


class Rows(Dataset):
    """A dataset as scripts have it."""

    def __init__(self, count: int = SAMPLES, first: int = 0) -> None:
        self.rows = [row(first + number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[index]


def network(outputs: int = 1) -> nn.Module:
    torch.manual_seed(outputs)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, outputs))


def loss_fn(model: Any, batch: Any) -> torch.Tensor:
    """Of a model and a batch, or of what a model has given and what was wanted."""
    given, wanted = (model(batch[0]), batch[1]) if isinstance(model, nn.Module) else (model[:, 0], batch.float())
    return functional.mse_loss(given, wanted)


def summed(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[1], reduction="sum")


def tokens(model: nn.Module, batch: Any) -> dict[str, Any]:
    """A loss over some samples alone, and of how many it is."""
    some = [each[batch[0][:, 0] > 0] for each in batch]
    return {"loss": summed(model, some), "counted": len(some[0])}


def seeded(number: int, make: Callable[[], nn.Module]) -> nn.Module:
    """A stage, the same in every worker."""
    torch.manual_seed(number)
    return make().double()


def sentences() -> TensorDataset:
    """For a model in stages, as in `sublet_lab.grid.script`."""
    words = torch.stack([(torch.arange(5) * (1 + number % 3) + number) % 9 for number in range(SAMPLES)])
    return TensorDataset(words[:, :-1], words[:, 1:])


def corpus(directory: Path) -> str:
    """Files of lines, for `train.dataset`."""
    place = directory / "corpus"
    if not place.exists():
        place.mkdir()
        for number in range(SAMPLES):
            x, y = row(number)
            (place / f"{number}.jsonl").write_text(json.dumps({"x": x.tolist(), "y": y.item()}) + "\n")
    return str(place)


def judge(get: Callable[[str], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Of a GAN whose noise is in its samples: what a worker draws for itself differs by nature."""
    judged, made = get("netD"), get("netG")
    return lambda real: (
        functional.softplus(-judged(real)).mean() + functional.softplus(judged(made(real.flip(1)).detach())).mean()
    )


def one_step(get: Callable[[str], Any]) -> Callable[[int], None]:
    """Of a loop of its own."""
    data, model, optimizer, scheduler = Rows(), get("model"), get("optimizer"), get("scheduler")

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss_fn(model, [each[None] for each in data[number % SAMPLES]]).backward()
        optimizer.step()
        scheduler.step()

    return step


NAMES: dict[str, Callable[[Callable[[str], Any]], Any]] = {  # each may ask for others
    "AveragedModel": lambda _: AveragedModel,
    "DataLoader": lambda _: DataLoader,
    "F": lambda _: functional,
    "IterableDataset": lambda _: IterableDataset,
    "StepLR": lambda _: StepLR,
    "d_loss": judge,
    "dataset": lambda _: Rows(),
    "ema": lambda get: AveragedModel(get("model")),
    "evaluate": lambda get: lambda model: loss_fn(model, next(iter(DataLoader(get("held_out"), 8)))),
    "functional": lambda _: functional,
    "g_loss": lambda get: lambda real: functional.softplus(-get("netD")(get("netG")(real.flip(1)))).mean(),
    "held_out": lambda _: Rows(17, SAMPLES),
    "loader": lambda get: DataLoader(get("dataset"), batch_size=BATCH, shuffle=True, num_workers=1),
    "loss_fn": lambda _: loss_fn,
    "loss_of": lambda get: lambda batch: loss_fn(get("model"), batch),
    "math": lambda _: math,
    "model": lambda _: network(),
    "netD": lambda _: network(),
    "netG": lambda _: network(FEATURES),
    "one_step": one_step,
    "optD": lambda get: torch.optim.Adam(get("netD").parameters(), lr=0.02),
    "optG": lambda get: torch.optim.Adam(get("netG").parameters(), lr=0.02),
    "optimizer": lambda get: torch.optim.Adam(get("model").parameters(), lr=0.02),
    "paths": lambda _: range(SAMPLES),
    "read": lambda _: lambda path: [row(path)],
    "sampler": lambda _: WeightedRandomSampler([1.0 + number for number in range(SAMPLES)], SAMPLES),
    "scheduler": lambda get: StepLR(get("optimizer"), 7, 0.8),
    "steps": lambda _: STEPS,
    "summed": lambda _: summed,
    "tokens": lambda _: tokens,
    "torch": lambda _: torch,
    "train": lambda _: train,
}
IN_STAGES = {
    "blocks": lambda _: [seeded(number, Block) for number in range(BLOCKS)],
    "dataset": lambda _: sentences(),
    "embed": lambda _: seeded(VOCAB, lambda: nn.Embedding(VOCAB, WIDTH)),
    "head": lambda _: seeded(WIDTH, Last),
}


def _named(loop: Loop, directory: Path) -> dict[str, Any]:
    """What it asks for, and nothing else: a schedule that nobody steps would count as one of the script's."""
    known = NAMES | {"corpus": lambda _: corpus(directory)} | (IN_STAGES if loop.kind == "parts" else {})
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in known:
            raise NameError(f"{loop.name} asks for {name!r}: say in {__name__}.NAMES what it stands for")
        if name not in made:
            made[name] = known[name](get)
        return made[name]

    for name in sorted(loop.asks_for):
        get(name)
    return made

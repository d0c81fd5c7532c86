"""What docs/reference/contract.md says is refused at the start is refused, row by row, in words that say what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim.lr_scheduler import ReduceLROnPlateau  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from tests.rigs.little_network import adam, data, network  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "contract.md"


class Stream(IterableDataset[Any]):
    """Without a length."""

    def __iter__(self) -> Any:
        return iter(data())


def session(model: Any = None, optimizer: Any = None, dataset: Any = None, **more: Any) -> Any:
    model = network() if model is None else model
    optimizer = adam(model) if optimizer is None else optimizer
    return train.session(model, optimizer, data() if dataset is None else dataset, global_batch=16, **more)


def staged(*blocks: nn.Module, **more: Any) -> Any:
    model = train.Stages(nn.Linear(4, 4), blocks or [nn.Linear(4, 4)], nn.Linear(4, 1))
    given = {"loss": lambda output, batch: output.mean(), "micro_batch": 4, "epochs": 1} | more
    make = given.pop("optimizer", adam)
    return session(model, make(model), **given)


def entered(opened: Any) -> None:
    with opened as s:
        next(iter(s))


class Mixing(torch.optim.SGD):
    """Goes by the length of all gradients."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            norm = torch.stack([p.grad.norm() for p in group["params"] if p.grad is not None]).norm()
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.div_(norm + 1)
        return super().step(closure)


def plateau() -> Any:
    model = network()
    optimizer = adam(model)
    return session(model, optimizer, scheduler=ReduceLROnPlateau(optimizer))


def alien() -> Any:
    model = network()
    return session(model, torch.optim.Adam([*model.parameters(), nn.Parameter(torch.ones(3))]))


def lbfgs() -> Any:
    model = network()
    return session(model, torch.optim.LBFGS(model.parameters()))


REFUSED = {  # the beginning of a row -> what is to be refused
    "DistributedDataParallel": lambda: session(nn.DataParallel(network())),
    "`fully_shard`": lambda: session(FSDPModule(2, 2)),
    "parameters that only": alien,
    "`LBFGS`": lbfgs,
    "a stream, or a dataset without": lambda: entered(session(dataset=Stream())),
    "a `batch_sampler=`": lambda: session(dataset=DataLoader(data(), batch_sampler=[[0, 1], [2]])),
    "`ReduceLROnPlateau`": plateau,
    "batch statistics": lambda: entered(staged(nn.BatchNorm1d(4))),
    "an option that": lambda: entered(staged(batch_range=(8, 32))),
    "an optimizer that mixes": lambda: entered(staged(optimizer=lambda model: Mixing(model.parameters(), lr=0.1))),
}
ELSEWHERE = ["a second session"]  # tests/e2e/test_train_epochs.py: it needs a job


def rows() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    part = text[text.index("## Refused at the start") : text.index("## Outside")]
    return [row for row in re.findall(r"^\| (.+?) \| .+ \|$", part, re.MULTILINE) if row not in ("what", "---")]


def test_every_row_of_the_page_is_tried_and_nothing_else():
    known = [*REFUSED, *ELSEWHERE]
    assert [row for row in rows() if sum(row.startswith(each) for each in known) != 1] == []
    assert len(rows()) == len(known)


@pytest.mark.parametrize("row", REFUSED)
def test_what_the_page_says_is_refused_is_refused(row):
    with pytest.raises(InvalidValue) as said:
        REFUSED[row]()
    assert len(str(said.value)) > 40  # not a name alone: what it is, and what it should be


class FSDPModule(nn.Linear):
    """As `fully_shard` makes of a module: a class of this name is among those of it."""


def test_a_model_that_is_sharded_by_torch_is_refused_wherever_it_is_in_the_model():
    with pytest.raises(InvalidValue, match=r"the bare model.*train\.checkpointed"):
        session(nn.Sequential(nn.Linear(2, 2), FSDPModule(2, 2)))
    two = {"D": nn.Linear(2, 2), "G": FSDPModule(2, 2)}
    with pytest.raises(InvalidValue, match="the bare model"):
        session(two, {name: adam(each) for name, each in two.items()})

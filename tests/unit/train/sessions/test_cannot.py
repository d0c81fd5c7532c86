"""What a strategy cannot do: one table, told at the start, and printed by the page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.sessions.fitness import RANGES, STAGES, TABLE, Asked, check_fits  # noqa: E402

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "session.md"


def test_the_page_prints_the_table():
    _, told = PAGE.read_text(encoding="utf-8").split("| training | with | write |\n|---|---|---|\n")
    rows, _ = told.split("\n\n", 1)
    assert rows.splitlines() == [f"| {row.how} | {row.what} | {row.write} |" for row in TABLE]


def squared(output, batch):
    return nn.functional.mse_loss(output, batch[1])


def a_session(layers=(nn.Linear,), dataset=None, several=False, **more):
    model = train.Stages(nn.Linear(3, 4), [kind(4, 4) for kind in layers], nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset or TensorDataset(torch.ones(8, 3), torch.ones(8, 1))
    facts = {"global_batch": 4, "micro_batch": 2, "loss": squared, "epochs": 1, **more}
    return train.session(model, {"a": optimizer} if several else optimizer, data, **facts)


class Endless(IterableDataset):
    def __iter__(self):
        yield from iter(lambda: (torch.ones(3), torch.ones(1)), None)


IN_STAGES = {
    "optimizer": {"several": True},
    "micro_batch": {"micro_batch": None},
    "dataset": {"dataset": DataLoader(TensorDataset(torch.ones(8, 3)))},
    "batch_range": {"batch_range": (4, 8)},
    "reduction": {"reduction": "counted"},
    "scaler": {"scaler": torch.amp.GradScaler("cpu")},
    "clip_value": {"clip_value": 1.0},
    "model": {"layers": (nn.Linear, lambda *_: nn.BatchNorm1d(4))},
}


def test_stages_refuse_batches_that_a_function_draws():
    with pytest.raises(InvalidValue, match="map-style dataset") as refused:
        a_session(dataset=train.drawn(lambda: (torch.ones(4, 3), torch.ones(4, 1))))
    assert "global_batch" in str(refused.value)


@pytest.mark.parametrize("field", IN_STAGES)
def test_stages_refuse_what_the_table_says_with_what_to_write(field):
    row = next(each for each in TABLE if (each.how, each.field) == (STAGES, field))
    with pytest.raises(InvalidValue) as refused:
        a_session(**IN_STAGES[field])
    assert refused.value.field == field
    assert row.write.replace("`", "") in str(refused.value)


def test_what_is_not_in_the_table_is_had_in_stages_too():
    with a_session(
        clip_norm=1.0, seed=3, scheduler_every="epoch", device="cpu", extra_state=torch.nn.Linear(1, 1)
    ) as s:
        for batch in s:
            assert s.step(batch) == s.loss
    assert s.steps == 2


def test_under_torchrun_there_are_no_stages(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidValue, match="parallel"):
        a_session()


def test_of_a_stream_steps_are_said(monkeypatch):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for more, field in (({"epochs": 1}, "steps"), ({"steps": 3, "scheduler_every": "epoch"}, "scheduler_every")):
        with pytest.raises(InvalidValue) as refused:
            train.session(model, optimizer, Endless(), global_batch=4, **more)
        assert refused.value.field == field


@pytest.mark.parametrize("field", ["micro_batch", "batch_range", "scaler", "loss"])
def test_several_optimizers_refuse_what_the_table_says(field):
    given = {"micro_batch": 2, "batch_range": (4, 8), "scaler": torch.amp.GradScaler("cpu"), "loss": squared}[field]
    models = {name: nn.Linear(3, 1) for name in "ab"}
    optimizers = {name: torch.optim.SGD(each.parameters(), lr=0.1) for name, each in models.items()}
    data = TensorDataset(torch.ones(8, 3))
    with pytest.raises(InvalidValue) as refused:
        train.session(models, optimizers, data, global_batch=4, **{field: given})
    assert refused.value.field == field


def test_ranges_refuse_a_scaler_and_several_optimizers():
    one = SimpleNamespace(scaler=None)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    check_fits(RANGES, Asked(one, optimizer=optimizer))
    for asked in (Asked(SimpleNamespace(scaler=1), optimizer=optimizer), Asked(one, optimizer={"a": optimizer})):
        with pytest.raises(InvalidValue, match="shards: off"):
            check_fits(RANGES, asked)

"""Numbers and bars that loops over epochs and batches have: converted to the same weights, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

SCRIPT = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm, trange

torch.manual_seed(0)
x = torch.rand(16, 4)
y = 10 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
for epoch in EPOCHS:
    for i, (a, b) in BATCHES:
        for group in opt.param_groups:
            group["lr"] = 0.01 / (1 + i + epoch)
        opt.zero_grad()
        loss = F.mse_loss(model(a), b)
        loss.backward()
        opt.step()
torch.save(model.state_dict(), "model.pt")
"""


def script(epochs, batches):
    return SCRIPT.replace("EPOCHS", epochs).replace("BATCHES", batches)


@pytest.mark.parametrize(
    ("epochs", "batches", "first"),
    [
        ("range(3)", "enumerate(loader, 0)", ""),
        ("range(3)", "enumerate(loader, start=0)", ""),
        ("range(3)", "tqdm(enumerate(loader), total=len(loader))", ""),
        ("tqdm(range(3), desc='epochs')", "enumerate(loader)", ""),
        ("trange(1, 4)", "enumerate(loader)", ""),
        ("range(3)", "enumerate(loader, 1)", " + 1"),
        ("range(3)", "tqdm(enumerate(loader, start=2))", " + 2"),
    ],
)
def test_numbers_of_epochs_and_batches_are_those_of_the_training(epochs, batches, first, tmp_path):
    source = script(epochs, batches)
    mended = converted(source)
    assert f"i = s.steps % len(loader){first}\n" in mended
    expected = run(source, tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0
    assert differs(expected, run_struck(mended, tmp_path / "struck", 2, 5)) == 0.0


@pytest.mark.parametrize(
    ("epochs", "batches", "why"),
    [
        ("range(3)", "enumerate(loader, len(x))", "is not a DataLoader"),
        ("range(3)", "enumerate(tqdm(enumerate(loader)))", "is not a DataLoader"),
        ("tqdm([0, 1, 2])", "enumerate(loader)", "is not `for epoch in range"),
    ],
)
def test_other_numbers_are_refused(epochs, batches, why):
    with pytest.raises(CannotConvert, match=why):
        converted(script(epochs, batches))
    named = script("range(3)", "bar").replace("    for i,", "    bar = tqdm(enumerate(loader))\n    for i,")
    with pytest.raises(CannotConvert):
        converted(named)

"""What a training remembers outside of its `state_dict`s, live: one worker, two, a kill, a restart.

Each epoch changes an attribute of the model, a list that a hook reads, the dataset (in workers of a loader), and the
rates by a function that counts; one freezes a layer. Nothing of it depends on the width, so all comes to what the plain
loop comes to, within rounding.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.rigs.converted_runs import differs, run  # noqa: E402
from tests.rigs.scenario import world  # noqa: E402

HEAD = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sublet import train


class Scaled(Dataset):
    def __init__(self):
        self.x = torch.rand(96, 8)
        self.scale = 1.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] * self.scale, 3 * self.x[index].sum(0, keepdim=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.temperature = nn.Linear(8, 16), nn.Linear(16, 1), 1.0

    def forward(self, x):
        return self.last(torch.tanh(self.first(x))) * self.temperature


def rates():
    asked = 0

    def rate(step):
        nonlocal asked
        asked += 1
        return 0.97**asked

    return rate


torch.manual_seed(0)
dataset, model, seen = Scaled(), Net(), []
model.first.register_forward_hook(lambda module, given, out: out * (1 + len(seen) / 20))
loader = DataLoader(dataset, batch_size=16, num_workers=1, generator=torch.Generator())
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(opt, rates())
"""
AFTER = """
        seen.append(epoch)
        model.temperature *= 0.9
        dataset.scale *= 0.95
        if epoch == 2:
            model.first.requires_grad_(False)
"""
END = """
torch.save({**model.state_dict(), "seen": seen, "scale": dataset.scale, "lr": opt.param_groups[0]["lr"]}, "model.pt")
"""
PLAIN = f"""{HEAD}
if True:
    for epoch in range(8):
        for x, y in loader:
            opt.zero_grad()
            F.mse_loss(model(x), y).backward()
            opt.step()
            scheduler.step()
{AFTER}{END}"""
SESSION = f"""{HEAD}
with train.session(model, opt, loader, epochs=8, scheduler=scheduler) as s:
    for epoch in s.epochs():
        for x, y in s:
            s.step(F.mse_loss(model(x), y))
{AFTER}{END}"""


@pytest.mark.parametrize("strikes", ["resized", "restarted"])
def test_it_comes_to_what_the_plain_loop_does(strikes, tmp_path):
    expected = run(PLAIN, tmp_path / "plain")
    (tmp_path / "after.py").write_text(SESSION)
    struck = world(strikes, tmp_path / strikes, env={"SCRIPT": str(tmp_path)}, module="tests.adoption.strikes")
    found = torch.load(tmp_path / strikes / "model.pt")
    assert struck["generations"] == 5
    assert (found["seen"], found["scale"]) == (expected["seen"], expected["scale"])
    if strikes == "restarted":
        assert differs(expected, found) == 0.0
    else:
        assert struck["wide"] >= 5  # steps that two workers made
        assert abs(found.pop("lr") - expected.pop("lr")) < 1e-12
        assert differs(expected, found) < 1e-4

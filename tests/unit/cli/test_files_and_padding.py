"""What a loop writes into files and tells trackers, and batches that are padded: right after strikes, or refused."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import csv
import json
from pathlib import Path
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(16, 4)
y = 10 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
"""
STEP = ("opt.zero_grad()", "loss = F.mse_loss(model(a), b)", "loss.backward()", "opt.step()")


def script(before="", epoch="", turn="", after="", later="", head="for a, b in loader:"):
    def inside(text, indent):
        return "".join(f"{' ' * indent}{line}\n" for line in text.splitlines())

    loop = f"for epoch in range(3):\n{inside(epoch, 4)}    {head}\n"
    loop += inside("\n".join((*STEP, turn)), 8) + inside(after, 4)
    return f"{HEAD}{before}\n{loop}{later}\ntorch.save(model.state_dict(), 'model.pt')\n"


def refused(source):
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert error.value.do
    return error.value


TOTAL = {"before": "seen = []", "epoch": "total = 0.0", "turn": "total += loss.item()", "after": "seen.append(total)"}
HELD_OUT = {"before": "seen = []", "after": "seen.append(F.mse_loss(model(x), y).item())"}
WRITTEN = {
    "json": "with open('seen.json', 'w') as f:\n    json.dump(seen, f)",
    "text": "Path('seen.json').write_text(json.dumps(seen))",
    "numpy": "np.savetxt('seen.txt', seen)",
    "csv": "with open('seen.csv', 'w') as f:\n    csv.writer(f).writerow(seen)",
    "print": "with open('seen.json', 'w') as f:\n    print(seen, file=f)",
}


@pytest.mark.parametrize("how", WRITTEN)
def test_a_history_of_running_totals_is_refused_where_it_is_written(how):
    assert "`total` begins anew" in refused(script(**TOTAL, later=WRITTEN[how])).why
    assert "train.session(" in converted(script(**TOTAL, later="print(seen)"))


@pytest.mark.parametrize("how", ["json", "text", "print"])
def test_a_history_of_what_was_measured_after_each_epoch_is_whole_after_strikes(how, tmp_path):
    source = script(**HELD_OUT, later=WRITTEN[how])
    mended = converted(source)
    expected = run(source, tmp_path / "plain")
    assert differs(expected, run_struck(mended, tmp_path / "struck", 2, 5, 9)) == 0.0
    plain, struck = (json.loads((tmp_path / each / "seen.json").read_text()) for each in ("plain", "struck"))
    assert len(plain) == 3
    assert struck == plain


def test_a_tracker_is_told_the_number_of_a_batch_in_the_training_and_no_total_of_a_part():
    counted = "for i, (a, b) in enumerate(loader):"
    told = "w.add_scalar('loss', loss.item(), epoch * len(loader) + i)"
    writer = "from torch.utils.tensorboard import SummaryWriter\nw = SummaryWriter()"
    assert "i = s.steps % len(loader)" in converted(script(before=writer, turn=told, head=counted))
    total = TOTAL | {"before": writer, "after": "w.add_scalar('loss', total, epoch)"}
    assert "`total` begins anew" in refused(script(**total)).why


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("log = open('log.csv', 'w')", "log.write(f'{epoch}')"),
        ("log = Path('log.csv').open(mode='w')", "log.write(f'{epoch}')"),
        ("log = open('log.csv', 'w')\nrows = csv.writer(log)", "rows.writerow([epoch])"),
    ],
)
def test_a_file_that_every_start_empties_is_refused(before, after):
    source = script(before=before, after=after)
    error = refused(source)
    assert "begins empty" in error.why
    assert source.splitlines()[error.line - 1] == before.partition("\n")[0]
    assert "train.session(" in converted(source.replace("'w'", "'a'"))
    anew = "with open('last.txt', 'w') as log:\n    log.write(str(epoch))"
    assert "train.session(" in converted(script(after=anew))


@pytest.mark.parametrize(
    "body",
    [
        "return nn.utils.rnn.pad_sequence(batch)",
        "n = max(len(t) for t in batch)\n    return torch.stack([F.pad(t, (0, n - len(t))) for t in batch])",
        "return tokenizer(batch, padding=True)",
    ],
)
def test_a_batch_that_is_padded_to_its_longest_is_refused(body):
    source = script().replace("loader = ", f"\n\ndef put(batch):\n    {body}\n\n\nloader = ", 1)
    source = source.replace("batch_size=4", "batch_size=4, collate_fn=put")
    assert "padded to the longest" in refused(source).why
    fixed = body.replace("n = max(len(t) for t in batch)", "n = 9").replace("=True", "='max_length'")
    if fixed != body:
        assert "train.session(" in converted(source.replace(body, fixed))


@pytest.mark.parametrize(
    ("body", "fixed"),
    [
        ("return torch.cat([t[:-1] for t in batch])", "return torch.cat([t[None] for t in batch])"),
        ("return torch.concat(batch, dim=0)", "return torch.cat([torch.stack(batch), torch.stack(batch)], dim=1)"),
        ("return torch.hstack([t for t in batch])", "return torch.hstack([torch.stack(batch), torch.stack(batch)])"),
        ("return torch.vstack(batch)", "return torch.stack(batch)"),
        ("xs, ys = zip(*batch)\n    return torch.cat(xs)", "xs, ys = zip(*batch)\n    return torch.stack(xs)"),
        (
            "rows = []\n    for t in batch:\n        rows.append(t)\n    return torch.cat(rows)",
            "rows = []\n    for t in batch:\n        rows.append(t.unsqueeze(0))\n    return torch.cat(rows)",
        ),
        (
            "return torch.cat([torch.tensor(t) for t in batch])",
            "return torch.cat([torch.tensor([len(t)]) for t in batch])",
        ),
    ],
)
def test_samples_that_are_put_end_to_end_are_refused_and_rows_are_not(body, fixed):
    source = script().replace("loader = ", f"\n\ndef put(batch):\n    {body}\n\n\nloader = ", 1)
    source = source.replace("batch_size=4", "batch_size=4, collate_fn=put")
    error = refused(source)
    assert "put end to end" in error.why
    assert "a mean over tokens would be another" in error.why
    assert source.splitlines()[error.line - 1].strip() == body.rpartition("\n")[2].strip()
    assert "train.session(" in converted(source.replace(body, fixed))


TOKENS = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
IGNORE = -100


class Rows(Dataset):
    def __init__(self):
        self.x = torch.randint(1, 7, (24, 5))

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return self.x[i]


def put(batch):
    x = torch.stack(batch)
    y = x.clone()
    return x, y


loader = DataLoader(Rows(), batch_size=8, collate_fn=put)
model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        opt.step()
torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("y = x.clone()", "y = x.masked_fill(x > 4, -100)"),
        ("y = x.clone()", "y = x.clone()\n    y[x > 4] = IGNORE"),
        (
            "collate_fn=put",
            "collate_fn=lambda rows: (torch.stack(rows), torch.full((8, 5), -100))",
        ),
        ("return self.x[i]\n", "return self.x[i].masked_fill(self.x[i] > 4, -100)\n"),
    ],
)
def test_labels_of_minus_100_that_a_collate_or_a_dataset_makes_are_refused(was, now):
    source = TOKENS.replace(was, now)
    error = refused(source)
    line = source.splitlines()[error.line - 1]
    assert "-100" in line or "IGNORE" in line
    mean = next(n for n, text in enumerate(source.splitlines(), 1) if "F.cross_entropy" in text)
    assert f"which the loss in line {mean} leaves out of its mean" in error.why
    assert 'reduction="counted"' in error.do
    assert "counted=(labels != -100).sum()" in error.do
    of_model = source.replace("F.cross_entropy(model(x).flatten(0, 1), y.flatten())", "model(x, labels=y).loss")
    assert f"which the loss in line {mean}" in refused(of_model).why


def test_labels_without_it_sums_and_losses_that_ignore_nothing_are_not_refused_for_it(tmp_path):
    assert "train.session(" in converted(TOKENS)
    made = TOKENS.replace("y = x.clone()", "y = x.masked_fill(x > 4, -100)")
    summed = made.replace("y.flatten())", "y.flatten(), reduction='sum')")
    mended = converted(summed)
    assert 'reduction="sum"' in mended
    expected = run(summed, tmp_path / "plain")
    assert differs(expected, run_struck(mended, tmp_path / "struck", 2, 4)) == 0.0
    squares = "F.mse_loss(model(x).flatten(0, 1)[:, 0], y.flatten().float())"
    assert "train.session(" in converted(made.replace("F.cross_entropy(model(x).flatten(0, 1), y.flatten())", squares))

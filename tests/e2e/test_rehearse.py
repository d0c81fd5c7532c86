"""`sublet rehearse`: planted scripts in real workers: each mistake is shown where it is, a right script is alike."""

from __future__ import annotations

import sys
import textwrap

import pytest

from sublet.runtime.rehearsal.rehearse import rehearse

HEAD = """
import random
import torch
from torch.utils.data import TensorDataset
from sublet import train

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x.sum(1, keepdim=True) + 1.0
data = TensorDataset(x, y)
"""
PLAIN = """
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss
"""
LOOP = """
with train.session(model, opt, data, global_batch=32, epochs=5) as s:
    for epoch in s.epochs():
        for a, b in s:
            s.step(mse(model(a), b))
            if s.rank == 0:
                print(f"step {s.steps} loss {s.loss:.4f}")
    if s.rank == 0:
        torch.save(model.state_dict(), "model.pt")
        open("last.txt", "w").write(f"{s.loss:.5f}")
"""


@pytest.fixture
def rehearsed(tmp_path):
    """What a script of these parts comes to."""

    def run(*parts, **options):
        (tmp_path / "train.py").write_text("\n".join(textwrap.dedent(part) for part in parts))
        report = rehearse([sys.executable, "train.py"], tmp_path, **options)
        assert [path.name for path in tmp_path.iterdir()] == ["train.py"]  # the user's folder is as it was
        assert report.verdict != "cannot run", report.why
        return report

    return run


def kinds(report):
    """Of its differences: run and kind."""
    return {(each.run, each.kind) for each in report.differences}


def test_a_right_script_is_alike_at_two_workers_and_over_kills(rehearsed):
    report = rehearsed(HEAD, PLAIN, LOOP)
    assert report.verdict == "alike", report.differences
    assert report.noise == ()
    assert [(each.name, each.workers, each.steps) for each in report.runs] == [
        ("one", 1, 20),
        ("seed", 1, 20),
        ("width", 2, 20),
        ("kill", 2, 20),
    ]
    for each in report.runs[1:]:
        assert (each.weights, each.loss, each.lines, each.files) == ("equal", "equal", "equal", "equal")


def test_dropout_is_noise_and_no_difference(rehearsed):
    model = PLAIN.replace("torch.nn.ReLU()", "torch.nn.ReLU(), torch.nn.Dropout(0.3)")
    report = rehearsed(HEAD, model, LOOP)
    assert report.verdict == "alike", report.differences
    assert {each.kind for each in report.noise} >= {"loss", "weights"}
    assert report.runs[1].weights == "noise"


def test_a_sum_is_named_with_the_parameter_and_the_reduction(rehearsed):
    loop = LOOP.replace("mse(model(a), b)", "squares(model(a) - b)")
    squares = "squares = lambda error: (error.T @ error).squeeze()"
    report = rehearsed(HEAD, PLAIN.replace("lr=0.01", "lr=0.0005"), squares, loop)
    first = report.differences[0]
    assert (first.run, first.step) == ("width", 1)
    assert ("width", "weights") in kinds(report)
    assert "reduction='sum'" in first.advice


def test_a_mean_over_tokens_in_a_class_asks_for_counted(rehearsed):
    model = """
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, a, b):
            mask = (a > 0.5).any(1, keepdim=True) & (a[:, :1] > 0)
            return ((self.layer(a) - b) ** 2 * mask).sum() / mask.sum()

    model = Masked()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    mse = None
    """
    report = rehearsed(HEAD, model, LOOP.replace("mse(model(a), b)", "model(a, b)"))
    first = report.differences[0]
    assert (first.run, first.kind) == ("width", "loss")
    assert "counted" in first.advice


def test_a_log_of_a_workers_own_loss_in_a_lambda_and_a_file_that_both_ranks_write_are_named(rehearsed):
    loop = LOOP.replace("s.step(mse(model(a), b))", "loss = mse(model(a), b); s.step(loss)")
    loop = loop.replace("{s.loss:.4f}", "{said(loss)}")
    log = "open('log.csv', 'a').write(f'{s.steps}\\n')"
    report = rehearsed(HEAD, PLAIN, "said = lambda loss: round(loss.item(), 4)", loop, log)
    assert {each for each in kinds(report) if each[0] == "width"} == {("width", "line"), ("width", "file")}
    line, file = (each for each in report.differences if each.run == "width")
    assert "log s.loss" in line.advice
    assert line.name.startswith("step 1 loss")
    assert file.name == "log.csv"
    assert "if s.rank == 0" in file.advice


def test_a_counter_that_a_process_takes_along_when_it_is_killed_is_told_to_be_kept(rehearsed):
    ramp = """
    class Ramp:
        done = 0

        def loss(self, a, b):
            self.done += 1
            return mse(model(a), b) * min(1.0, 0.05 * self.done)

    ramp = Ramp()
    """
    report = rehearsed(HEAD, PLAIN, ramp, LOOP.replace("mse(model(a), b)", "ramp.loss(a, b)"))
    assert report.differences
    assert {each.run for each in report.differences} == {"kill"}
    assert "s.keep" in report.differences[0].advice
    assert report.differences[0].step >= 10


def test_dice_of_python_are_noise(rehearsed):
    report = rehearsed(HEAD, PLAIN, LOOP.replace("mse(model(a), b)", "mse(model(a), b) * random.random()"))
    assert report.noise
    assert report.runs[1].weights == "noise"


def test_a_loop_of_its_own_is_compared_step_by_step_where_it_has_checkpoints(rehearsed):
    own = """
    model = torch.nn.Linear(8, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    ck = train.checkpointed(model=model, optimizer=opt, steps=1000)
    for step in range(ck.resume(), 1000):
        loss = ((model(x) - y) ** 2).mean() * rate(step)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ck.tick(step + 1)
    """
    report = rehearsed(HEAD, "rate = lambda step: 1.0 / (1 + step)", own)
    assert report.verdict == "alike", report.differences
    assert [(each.name, each.workers, each.steps) for each in report.runs] == [
        ("one", 1, 20),
        ("seed", 1, 20),
        ("kill", 1, 20),
    ]
    assert report.runs[2].weights == "equal"
    assert any("no process group" in note for note in report.notes)
    lost = "seen = []\nrate = lambda step: (seen.append(step), 1.0 / len(seen))[1]"
    first = rehearsed(HEAD, lost, own).differences[0]
    assert (first.run, first.kind, first.step) == ("kill", "weights", 14)  # all went back to step 13


@pytest.mark.parametrize(
    "text",
    [HEAD + "raise RuntimeError('planted')", HEAD + PLAIN + LOOP.replace("mse(", "planted(")],
    ids=["before the session", "in its first step"],
)
def test_a_script_that_fails_before_its_first_step_cannot_be_rehearsed(text, tmp_path):
    (tmp_path / "train.py").write_text(text)
    report = rehearse([sys.executable, "train.py"], tmp_path)
    assert report.verdict == "cannot run"
    assert "planted" in report.why


def test_what_cannot_be_rehearsed_is_refused_by_the_command(sublet, tmp_path):
    (tmp_path / "train.py").write_text("")
    command = ["--", "python", str(tmp_path / "train.py")]
    for words, named in (
        (["--steps", "3", *command], "--steps"),
        (["--workers", "1", *command], "--workers"),
        (["--workers", "17", *command], "--workers"),
        (["--kill-at", "19", *command], "--kill-at"),
        (["--seconds", "0", *command], "--seconds"),
        (["--", "python", str(tmp_path / "gone.py")], "a script that exists"),
    ):
        answer = sublet("rehearse", *words)
        assert answer.code == 2
        assert named in answer.err

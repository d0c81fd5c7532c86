"""The elastic Accelerator does what that of accelerate does in one process."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from sublet.errors import InvalidValue  # noqa: E402
from sublet.integrations.accelerate import Accelerator  # noqa: E402
from sublet.integrations.accelerate.accelerator import NAMES  # noqa: E402
from tests.rigs.converted_runs import differs, run, run_struck  # noqa: E402


def parts(batch_size=6, samples=36):
    torch.manual_seed(3)
    x = torch.randn(samples, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, loader, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def trained(accelerator, epochs, *, every="step", clip="norm", count=3):
    """A loop as people write it; what it comes to."""
    model, optimizer, loader, scheduler = accelerator.prepare(*parts())
    seen = []
    for epoch in epochs(count):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients and clip == "norm":
                    accelerator.clip_grad_norm_(model.parameters(), 0.3)
                elif accelerator.sync_gradients:
                    accelerator.clip_grad_value_(model.parameters(), 0.05)
                optimizer.step()
                if every == "step":
                    scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                seen.append((epoch, round(scheduler.get_last_lr()[0], 9)))
        if every == "epoch":
            scheduler.step()
    return dict(accelerator.unwrap_model(model).state_dict()), seen


@pytest.mark.parametrize("every", ["step", "epoch"])
@pytest.mark.parametrize(("accumulated", "clip"), [(1, "norm"), (2, "norm"), (3, "value")])
def test_in_one_process_it_comes_to_what_accelerate_comes_to(accumulated, clip, every):
    plain = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    weights, seen = trained(plain, range, every=every, clip=clip)
    ours = Accelerator(cpu=True, gradient_accumulation_steps=accumulated, scheduler_every=every)
    our_weights, our_seen = trained(ours, ours.epochs, every=every, clip=clip)
    torch.testing.assert_close(our_weights, weights, rtol=1e-4, atol=1e-5)
    assert our_seen == seen
    assert len(seen) == 18 // accumulated


class Counter:
    """Something of the script's own that belongs to the state."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_it_goes_on_where_it_was_with_what_was_registered(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_CHECKPOINT_DIR", str(tmp_path))

    def run(count):
        accelerator, counter, seen = Accelerator(cpu=True), Counter(), []
        model, optimizer, loader, _ = parts()
        accelerator.register_for_checkpointing(counter)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for epoch in accelerator.epochs(count):
            seen.append(epoch)
            for x, y in loader:
                accelerator.backward(F.mse_loss(model(x), y))
                optimizer.step()
                counter.count += 1
        return seen, counter.count, dict(model.state_dict())

    assert run(2)[:2] == ([0, 1], 12)
    seen, count, weights = run(5)
    assert (seen, count) == ([2, 3, 4], 30)
    monkeypatch.delenv("SUBLET_CHECKPOINT_DIR")
    assert all(torch.equal(weights[name], value) for name, value in run(5)[2].items())


COUNTED = """import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from sublet.integrations.accelerate import Accelerator

torch.manual_seed(3)
x = torch.randn(36, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
kept = accelerator.keep(completed=0, history=[])
assert kept.completed == 0
for epoch in accelerator.epochs(5):
    for a, b in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.mse_loss(model(a), b))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            kept.completed += 1
        if kept.completed >= 10:
            break
    kept.history.append(epoch)
    if kept.completed >= 10:
        break
accelerator.end_training()
state = dict(accelerator.unwrap_model(model).state_dict())
torch.save(state | {"completed": kept.completed, "history": kept.history}, "model.pt")
"""


def test_what_a_script_counts_goes_on_where_it_is_kept(tmp_path):
    expected = run(COUNTED, tmp_path / "calm")
    assert (expected["completed"], expected["history"]) == (10, [0, 1, 2, 3])
    assert differs(expected, run_struck(COUNTED, tmp_path / "struck", 2, 7)) == 0.0


def test_a_training_that_was_ended_with_end_training_is_over_at_its_next_start(tmp_path, monkeypatch, capsys):
    expected = run(COUNTED, tmp_path)
    for _ in range(2):
        assert differs(expected, run(COUNTED, tmp_path)) == 0.0
        assert "was ended by its script, which left its loop after 10 steps of epochs=5" in capsys.readouterr().err


def test_a_training_that_an_error_has_ended_is_not_over_though_its_script_ends_it_in_a_finally(tmp_path, monkeypatch):
    falls = """try:
    for epoch in accelerator.epochs(5):
        for a, b in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.mse_loss(model(a), b))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                kept.completed += 1
            if kept.completed == LIMIT:
                raise RuntimeError("out of luck")
finally:
    accelerator.end_training()
"""
    head, _, tail = COUNTED.partition("for epoch in")
    tail = tail[tail.index("state = dict") :]
    expected = run(head + falls.replace("LIMIT", "99") + tail, tmp_path / "calm")
    for limit in ("6", "99"):
        with pytest.raises(RuntimeError, match="luck") if limit == "6" else nullcontext():
            found = run(head + falls.replace("LIMIT", limit) + tail, tmp_path / "struck")
    assert expected["completed"] == found["completed"] == 15


def test_what_is_kept_is_said_once_before_the_loop():
    accelerator = Accelerator(cpu=True)
    kept = accelerator.keep(completed=0)
    with pytest.raises(InvalidValue, match="one of completed"):
        kept.other = 1
    with pytest.raises(InvalidValue, match="called once"):
        accelerator.keep(best=0)


@pytest.mark.parametrize(
    ("samples", "accumulated", "words"),
    [
        (36, 2, ""),
        (36, 1, ""),
        (37, 1, ""),
        (42, 2, r"has 6 of 12 samples.*1/2 of the mean.*there is 1:"),
        (45, 2, r"has 9 of 12 samples.*1/2 of the mean.*there are 2:"),
    ],
)
def test_a_last_step_that_is_not_accelerates_is_said_at_the_start(samples, accumulated, words, capsys):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    model, optimizer, loader = accelerator.prepare(*parts(samples=samples)[:3])
    seen = 0
    for _ in accelerator.epochs(1):
        for a, b in loader:
            accelerator.backward(F.mse_loss(model(a), b))
            optimizer.step()
            seen += len(a)
    assert seen == samples
    told = capsys.readouterr().err
    assert re.search(words, told) if words else "the last step" not in told


def test_who_breaks_out_of_the_loop_says_that_training_is_over(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_CHECKPOINT_DIR", str(tmp_path))
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, _ = parts()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in accelerator.epochs(5):
        for x, y in loader:
            accelerator.backward(F.mse_loss(model(x), y))
            optimizer.step()
        break
    assert not list(tmp_path.glob("step-*"))
    accelerator.end_training()
    assert list(tmp_path.glob("step-*"))  # the last checkpoint


def test_evaluation_sees_all_of_its_loader_and_its_state_is_saved(tmp_path):
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, scheduler = parts()
    held_out = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=4)
    _, _, loader, held_out, _ = accelerator.prepare(model, optimizer, loader, held_out, scheduler)
    assert len(loader) == 6
    assert torch.equal(torch.cat([accelerator.gather_for_metrics(each) for (each,) in held_out]), torch.arange(10.0))
    accelerator.save_state(str(tmp_path))
    assert {"model.safetensors", "optimizer.bin", "scheduler.bin"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_an_accelerator_still_has(name):
    assert isinstance(getattr(accelerate.Accelerator(cpu=True), name), list)


# ------------------------------------------------------------------------------------------- what is refused


def test_a_loop_over_epochs_of_its_own_is_refused():
    accelerator = Accelerator(cpu=True)
    with pytest.raises(InvalidValue, match=r"accelerator\.epochs"):
        trained(accelerator, range)


def test_a_scheduler_in_another_place_than_was_said_is_refused():
    for said, called in (("step", "epoch"), ("epoch", "step")):
        accelerator = Accelerator(cpu=True, scheduler_every=said)
        with pytest.raises(InvalidValue, match=r"scheduler\.step"):
            trained(accelerator, accelerator.epochs, every=called)


def test_a_batch_without_a_step_is_refused():
    accelerator = Accelerator(cpu=True)
    model, _, loader, _ = accelerator.prepare(*parts())

    def loop():
        for _ in accelerator.epochs(1):
            for x, y in loader:
                accelerator.backward(F.mse_loss(model(x), y))

    with pytest.raises(InvalidValue, match=r"optimizer\.step\(\)"):
        loop()


def test_what_cuts_the_model_loads_a_state_or_has_two_optimizers_is_refused():
    with pytest.raises(InvalidValue, match="fsdp_plugin"):
        Accelerator(cpu=True, fsdp_plugin=object())
    accelerator = Accelerator(cpu=True)
    with pytest.raises(InvalidValue, match="load_state"):
        accelerator.load_state("somewhere")
    with pytest.raises(InvalidValue, match="a second one"):
        accelerator.prepare(parts()[1], parts()[1])


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(TensorDataset(torch.zeros(8, 4), torch.zeros(8, 1)))


def test_a_stream_is_refused():
    accelerator = Accelerator(cpu=True)
    model, optimizer, *_ = parts()
    accelerator.prepare(model, optimizer, DataLoader(Stream(), batch_size=4))
    with pytest.raises(InvalidValue, match="Stream, a stream"):
        next(accelerator.epochs(1))

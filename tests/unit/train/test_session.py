"""A session without a controller: plain PyTorch, to the bit; and what it refuses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import BadInput, CheckpointFailed, InvalidValue  # noqa: E402
from sublet.train.data.samples import Samples  # noqa: E402
from sublet.wire.messages import Finished  # noqa: E402
from tests.rigs.little_network import FEATURES, adam, data, flat, loss_of, network  # noqa: E402


def trained(epochs: int = 2, **more) -> tuple[nn.Module, train.Session]:
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, **more) as s:
        for batch in s.batches(epochs=epochs):
            s.step(loss_of(model, batch))
    return model, s


def test_one_worker_is_a_plain_loop_bit_for_bit():
    plain = network()
    optimizer = adam(plain)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    x, y = data().tensors
    order = Samples(data(), 0, None, None)
    for epoch in range(2):
        for indices in order.order(epoch).split(16):
            optimizer.zero_grad()
            nn.functional.mse_loss(plain(x[indices]), y[indices]).backward()
            optimizer.step()
            scheduler.step()
    ours = network()
    optimizer = adam(ours)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    with train.session(ours, optimizer, data(), global_batch=16, scheduler=scheduler) as s:
        for batch in s.batches(epochs=2):
            s.step(loss_of(ours, batch))
    assert torch.equal(flat(ours), flat(plain))
    assert s.steps == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_draws_is_a_plain_one_to_the_bit_where_the_plain_loader_draws_nothing(workers):
    """Dropout, and noise of the loop's own. A plain loader without a generator takes a number in every epoch."""

    def plain(**more):
        model = network()
        optimizer, loader = adam(model), DataLoader(data(), batch_size=16, num_workers=workers, **more)
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                loss_of(model, [x, y + 0.1 * torch.randn(y.shape)]).backward()
                optimizer.step()
        return flat(model), torch.get_rng_state()

    ours = network()
    with train.session(ours, adam(ours), DataLoader(data(), batch_size=16, num_workers=workers), epochs=3) as s:
        for x, y in s:
            s.step(loss_of(ours, [x, y + 0.1 * torch.randn(y.shape)]))
    drawn = torch.get_rng_state()
    weights, draws = plain(generator=torch.Generator())
    assert torch.equal(flat(ours), weights)
    assert torch.equal(drawn, draws)
    assert not torch.equal(flat(ours), plain()[0])


def test_micro_batches_add_up_to_the_gradient_of_the_whole():
    model = network().eval()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    before, (x, y) = flat(model), data(16).tensors
    nn.functional.mse_loss(model(x), y).backward()
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    sgd.zero_grad()
    sizes = []
    with train.session(model, sgd, data(16), global_batch=16, micro_batch=5) as s:
        for batch in s.batches(epochs=1):
            sizes.append(len(batch[0]))
            s.step(loss_of(model, batch))
    assert sum(sizes) == 16
    assert max(sizes) <= 5
    assert torch.allclose(flat(model), before - gradient, atol=1e-6)


def test_a_run_that_was_cut_off_resumes_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_CHECKPOINT_EVERY_S", "0")

    def cut_off() -> None:
        model = network()
        with train.session(model, adam(model), data(), global_batch=16, checkpoint_dir=tmp_path) as s:
            for batch in s.batches(epochs=2):
                s.step(loss_of(model, batch))
                if s.steps == 5:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    resumed, s = trained(checkpoint_dir=tmp_path)
    assert s.steps == 8
    assert torch.equal(flat(resumed), flat(trained()[0]))  # dropout too: random numbers are part of the state


def test_a_training_that_is_finished_is_said_to_be(tmp_path, capsys):
    first, _ = trained(checkpoint_dir=tmp_path)
    assert not capsys.readouterr().err
    again, s = trained(checkpoint_dir=tmp_path)
    assert s.steps == 8  # nothing is left to do
    assert torch.equal(flat(again), flat(first))
    said = capsys.readouterr().err
    assert f"the training in {tmp_path} is finished (8 steps): there is nothing left to train" in said
    assert "next: " in said
    trained(checkpoint_dir=tmp_path, epochs=3)  # there is: the same training, longer
    assert "nothing left" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("now", "batch"),
    [
        ({"global_batch": 8}, 8),  # what the script says counts, not what it once said
        ({"global_batch": 10, "batch_range": (5, 12)}, 12),
        ({"global_batch": 20, "batch_range": (20, 40)}, 20),
        ({"global_batch": 10, "batch_range": (5, 40)}, 16),  # within the range, it is the one that was come to
    ],
)
def test_a_script_that_has_another_batch_since_its_checkpoint_trains_with_that(now, batch, tmp_path):
    trained(checkpoint_dir=tmp_path)  # two epochs of 16 samples a step
    model = network()
    with train.session(model, adam(model), data(), checkpoint_dir=tmp_path, **now) as s:
        for each in s.batches(epochs=3):
            s.step(loss_of(model, each))
            break
        assert s.global_batch == batch
        assert s.steps >= 8


def test_a_checkpoint_of_another_dataset_is_refused(tmp_path):
    trained(checkpoint_dir=tmp_path)
    model = network()
    with (
        pytest.raises(BadInput, match="50 samples, this training has 60"),
        train.session(model, adam(model), data(60), global_batch=16, checkpoint_dir=tmp_path) as s,
    ):
        next(iter(s.batches(epochs=1)))


def test_a_directory_that_cannot_be_written_stops_no_training_and_is_an_error_at_its_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SUBLET_CHECKPOINT_EVERY_S", "0")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr("sublet.train.checkpoint.saving.LAST_PAUSES_S", ())
    model, said = network(), []
    s = train.session(model, adam(model), data(), global_batch=16, checkpoint_dir=tmp_path / "file")
    monkeypatch.setattr(s._link, "say", said.append)

    def train_to_the_end():
        with s:
            for batch in s.batches(epochs=2):
                s.step(loss_of(model, batch))

    with pytest.raises(CheckpointFailed, match="all 8 steps are made"):
        train_to_the_end()
    assert s.steps == 8
    assert torch.equal(flat(model), flat(trained()[0]))
    assert "training goes on" in capsys.readouterr().err
    assert not any(isinstance(message, Finished) for message in said)  # nobody counts it as finished


def test_while_the_last_checkpoint_is_tried_the_script_counts_as_busy(tmp_path, monkeypatch):
    """Or the silence between two tries would look like a hang."""
    model, told = network(), []
    s = train.session(model, adam(model), data(), global_batch=16, checkpoint_dir=tmp_path)
    monkeypatch.setattr(s._link, "script_goes_on", lambda: told.append("busy"))
    monkeypatch.setattr(s._link, "script_waits", lambda: told.append("waits"))
    monkeypatch.setattr(s._around.saver, "save_last", lambda *_: told.append("saves"))
    with s:
        for batch in s.batches(epochs=1):
            s.step(loss_of(model, batch))
    assert told[-3:] == ["busy", "saves", "waits"]


class Rows(Dataset):
    """A dataset that says what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, float]:
        self.asked.append(index)
        return {"x": float(index)}


def test_any_map_style_dataset_is_collated_as_torch_does():
    model, rows = nn.Linear(1, 1), Rows()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with train.session(model, sgd, rows, global_batch=4) as s:
        for batch in s.batches(epochs=1):
            assert set(batch) == {"x"}
            s.step(model(batch["x"].float()[:, None]).mean())
    assert sorted(rows.asked) == list(range(10))


def test_the_session_alone_updates_and_clears():
    model = network()
    optimizer = adam(model)
    with train.session(model, optimizer, data(16), global_batch=16, micro_batch=4) as s:
        for batch in s.batches(epochs=1):
            optimizer.zero_grad()  # a line left over from the plain loop: it must not clear half a batch
            s.step(loss_of(model, batch))
            with pytest.raises(InvalidValue, match=r"left to the session"):
                optimizer.step()
    twin = network()
    with train.session(twin, adam(twin), data(16), global_batch=16, micro_batch=4) as s:
        for batch in s.batches(epochs=1):
            s.step(loss_of(twin, batch))
    assert torch.equal(flat(model), flat(twin))
    loss_of(model, data(16).tensors).backward()
    optimizer.step()  # ours again
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_batch_without_a_step_is_refused():
    model = network()
    with (
        pytest.raises(InvalidValue, match="once for every batch"),
        train.session(model, adam(model), data(), global_batch=16) as s,
    ):
        for _ in s.batches(epochs=1):
            pass


def test_an_adaptive_batch_grows_within_its_range_and_sees_every_sample():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4000, FEATURES, generator=generator)
    noisy = TensorDataset(x, x.sum(1, keepdim=True) + 5.0 * torch.randn(4000, 1, generator=generator))
    model = nn.Linear(FEATURES, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    seen, batches = 0, []
    with train.session(model, sgd, noisy, global_batch=8, micro_batch=4, batch_range=(8, 64)) as s:
        for batch in s.batches(epochs=2):
            seen += len(batch[0])
            batches.append(s.global_batch)
            s.step(loss_of(model, batch))
    assert seen == 8000
    assert batches == sorted(batches)
    assert batches[0] == 8
    assert 16 < batches[-1] <= 64
    assert sgd.param_groups[0]["lr"] == 0.01  # scaled in each step, and given back


@pytest.mark.parametrize(
    "wrong",
    [{"global_batch": 0}, {"micro_batch": 0}, {"batch_range": (20, 30)}, {"clip_norm": -1.0}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_nonsense_is_refused(wrong):
    model = network()
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        train.session(model, adam(model), data(), **({"global_batch": 16} | wrong))

"""How many samples at a time will fit, on a device whose memory is known."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.train.numerics.memory import Footprint, Memory, gauge_of, samples_that_fit  # noqa: E402  # noqa: E402


class Device:
    """`whole` bytes: 100 stay, a micro-batch takes `floor` + 3 a sample."""

    def __init__(self, whole, floor=0):
        self.whole, self.floor, self.peak = whole, floor, 100

    def needs(self, samples):
        return 100 + self.floor + 3 * samples

    def compute(self, samples):
        if self.needs(samples) > self.whole:
            raise torch.OutOfMemoryError(f"{samples} samples")
        self.peak = max(self.peak, self.needs(samples))

    def take_peak(self):
        peak, self.peak = self.peak, 100
        return peak

    def resident(self):
        return 100

    def free(self):
        return self.whole - 100


def after(device, *sizes):
    footprint = Footprint(device)
    for samples in sizes:
        footprint.gives(samples)
        device.compute(samples)
        footprint.look()
    return footprint


@pytest.mark.parametrize("floor", [0, 10, 400])
@pytest.mark.parametrize("first", [1, 7, 32])
def test_what_is_expected_to_fit_does(floor, first):
    device = Device(1000, floor)
    most = after(device, first).most()
    assert most >= first
    device.compute(most)


def test_it_is_learned_from_larger_ones_how_little_a_sample_takes():
    device = Device(1000, floor=200)
    assert after(device, 4).most() < after(device, 4, 16).most() < after(device, 4, 16, 64).most()
    assert after(device, 64, 4).most() == after(device, 64).most()  # a smaller one teaches nothing


def test_a_step_that_did_not_fit_teaches_nothing():
    device = Device(1000)
    memory = Memory(None, device)
    memory.footprint.gives(500)
    device.peak = device.whole  # all that there was
    memory.cut(500)
    assert memory.expect(512) == 100
    assert memory.micro_batch == 250


def test_on_a_cpu_nothing_is_expected():
    memory = Memory(None, gauge_of(torch.device("cpu")))
    memory.footprint.gives(16)
    assert memory.expect(512) == 0
    assert memory.micro_batch is None


def run(monkeypatch, device, **more):
    """Batches of 16, then the plan has 200; samples at a time, in order."""
    monkeypatch.setattr("sublet.train.sessions.steps.gauge_of", lambda _: device)
    model, pieces, given = nn.Linear(4, 1), [], []
    sgd = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = TensorDataset(torch.randn(1_000, 4))
    with train.session(model, sgd, data, global_batch=16, batch_range=(16, 256), **more) as s:
        for (x,) in s.batches(epochs=1):
            given.append(len(x))

            def loss(x=x):
                device.compute(len(x))
                pieces.append(len(x))
                return model(x).square().mean()

            s.step(loss)
            if s.steps == 5:
                s._strategy.steps.obey(200)
    assert sum(pieces) == 1_000
    return given, pieces


def test_a_batch_of_the_plan_is_accumulated_before_anything_fails_to_fit(monkeypatch):
    given, pieces = run(monkeypatch, Device(360, floor=10))  # 83 samples fit, and no more
    assert given == pieces  # nothing was dropped and given again
    assert pieces[:5] == [16] * 5
    assert 32 < max(pieces) <= 83


def test_what_fits_is_taken_at_once(monkeypatch):
    assert max(run(monkeypatch, Device(10_000))[1]) == 200


def test_the_micro_batch_of_the_script_stays_the_limit(monkeypatch):
    assert max(run(monkeypatch, Device(10_000), micro_batch=8)[1]) == 8


def test_a_run_begins_with_what_fitted_in_the_run_before(monkeypatch):
    monkeypatch.setenv("SUBLET_SAMPLES_FIT", "12")
    _, pieces = run(monkeypatch, Device(10_000))
    assert pieces[:2] == [8, 8]  # of 16
    assert max(pieces) == 200  # then it has seen for itself how much there is


def test_a_fixed_batch_keeps_to_what_fitted_before():
    device = Device(1000)
    memory = Memory(None, device, fits=12)
    memory.footprint.gives(12)
    device.compute(12)
    memory.expect(0)
    assert memory.micro_batch == 12


@pytest.mark.parametrize("told", ["", "many", "-3"])
def test_what_is_no_number_of_samples_is_not_heeded(monkeypatch, told):
    monkeypatch.setenv("SUBLET_SAMPLES_FIT", told)
    assert samples_that_fit() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_batch_of_the_plan_is_accumulated_before_anything_fails_to_fit():
    """So much of it is taken that some 4 GiB are left: a sample of 8 MiB needs an eighth of a GiB in sixteen layers."""
    torch.cuda.empty_cache()
    device = torch.device("cuda")
    layers = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    taken = torch.empty(torch.cuda.mem_get_info()[0] - (4 << 30), dtype=torch.uint8, device=device)
    dataset = TensorDataset(torch.randn(4 * 5 + 64 * 3, 4096, 512))
    given, computed = [], []
    with train.session(model, optimizer, dataset, global_batch=4, batch_range=(4, 64), epochs=1, device="cuda") as s:
        for (x,) in s:
            given.append(len(x))

            def loss(x=x):
                computed.append(len(x))
                return model(x).square().mean()

            s.step(loss)
            if s.steps == 5:
                s._strategy.steps.obey(64)
    del taken
    assert given == computed  # nothing was dropped and given again
    assert sum(computed) == len(dataset)
    assert 4 < max(computed) < 64

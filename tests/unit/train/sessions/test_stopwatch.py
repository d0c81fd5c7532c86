"""Where the time of a step goes, by a clock that is told; and what a session says of it."""

from __future__ import annotations

import math
import socket

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.perf.live.rows import StepRow  # noqa: E402
from sublet.perf.live.speed import LiveSpeed, batch_steps  # noqa: E402
from sublet.train.link.agent_line import AgentLine  # noqa: E402
from sublet.train.numerics.noise import Noise  # noqa: E402
from sublet.train.sessions.stopwatch import Stopwatch  # noqa: E402
from sublet.wire.lines import to_line  # noqa: E402
from sublet.wire.messages import Regroup, Stepped  # noqa: E402


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def a_step(watch, clock, *, pieces=2, samples=8, full=True):
    """Loading 1 s and computing 2 s each, 3 s for the others, 4 s to update, 5 s for the script."""
    for at in range(pieces):
        watch.loads()
        clock.now_s += 1.0
        watch.gives()
        clock.now_s += 2.0
        watch.computed(samples, last=at == pieces - 1)
    clock.now_s += 3.0
    watch.summed()
    clock.now_s += 4.0
    watch.updated(full=full)
    clock.now_s += 5.0


def test_each_part_of_a_step_is_told_apart():
    clock = Clock()
    watch = Stopwatch(torch.device("cpu"), clock)
    a_step(watch, clock)
    assert watch.take() is None  # from update to update takes two of them
    for _ in range(3):
        a_step(watch, clock)
    times = watch.take()
    assert (times.pieces, times.samples, times.step_s) == (2, 8, 2 * 3.0 + 3.0 + 4.0 + 5.0)
    assert (times.data_s, times.compute_s, times.wait_s, times.update_s) == (1.0, 2.0, 3.0, 4.0)
    assert watch.take() is None


def test_a_step_that_is_not_full_or_was_dropped_does_not_count():
    clock = Clock()
    watch = Stopwatch(torch.device("cpu"), clock)
    a_step(watch, clock)
    a_step(watch, clock)
    a_step(watch, clock, pieces=1, samples=2, full=False)
    assert watch.take().samples == 8
    a_step(watch, clock)
    watch.loads()
    clock.now_s += 1000.0
    watch.restart()
    a_step(watch, clock)
    a_step(watch, clock)
    assert watch.take().step_s == 18.0


@pytest.mark.parametrize("growth", [0.0, 3e-5])
def test_how_fast_the_noise_grows_is_the_slope_of_its_logarithm(growth):
    noise, batch, small = Noise(), 64, 16
    for step in range(300):
        at = step * 200.0
        scatter = 500.0 * math.exp(growth * at)
        noise.add(1.0 + scatter / small, 1.0 / small, 1.0 + scatter / batch, batch, at=at)
    assert noise.growth == pytest.approx(growth, rel=0.1, abs=1e-9)
    assert noise.scale == pytest.approx(500.0 * math.exp(growth * 300 * 200.0), rel=0.2)


class Bowl(nn.Module):
    """Half the squared distance to each sample: the gradient is w - c, its noise the scatter of the samples."""

    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, c):
        return 0.5 * ((self.w - c) ** 2).sum(1).mean()


def bowl_run(said, monkeypatch, **more):
    monkeypatch.setattr("sublet.train.sessions.report.EVERY_S", 0.0)
    monkeypatch.setattr("sublet.train.sessions.report.PROFILE_EVERY_S", 0.0)
    samples = torch.randn(2048, 400, generator=torch.Generator().manual_seed(0))
    bowl = Bowl(400)
    optimizer = torch.optim.SGD(bowl.parameters(), lr=1e-12)  # it stays where it is, so that the noise does
    with train.session(bowl, optimizer, TensorDataset(samples), **more) as s:
        s._link.say = lambda message: said.append(message) if isinstance(message, Stepped) else None
        for (c,) in s.batches(epochs=1):
            s.step(bowl(c))
    return samples, s


def test_on_a_quadratic_the_noise_is_found_and_the_batch_that_follows_is_the_best_or_beside_it(monkeypatch):
    said = []
    monkeypatch.setattr("sublet.train.sessions.steps.EVERY_ADAPTIVE", 1)
    more = {"global_batch": 64, "micro_batch": 16, "batch_range": (64, 64)}
    samples, _ = bowl_run(said, monkeypatch, **more)
    true = float(samples.var(0).sum() / ((0.1 - samples.mean(0)) ** 2).sum())
    assert said[-1].noise == pytest.approx(true, rel=0.1)
    times = {"piece_s": 0.02 + 0.001 * 64, "step_s": 0.03 + 0.001 * 64}
    row = StepRow(gpu="T4", gpus=1, samples=64, **times)
    row_too = StepRow(gpu="T4", gpus=1, samples=512, piece_s=0.02 + 0.512, step_s=0.03 + 0.512)
    batches, chosen = batch_steps(16, 8, 4096), []
    for noise in (true, said[-1].noise):
        speed = LiveSpeed(rows=(row, row_too), batches=batches, initial=16, batch_now=8, noise=noise)
        chosen.append(batches.index(speed.best_batch("T4", (1,), 4096)))
    best = max(batches, key=lambda b: b / (0.03 + 0.001 * b) * (true + 16) / (true + b))
    assert abs(chosen[0] - chosen[1]) <= 1
    assert abs(chosen[1] - batches.index(best)) <= 1


def test_a_session_says_what_its_steps_are_made_of(monkeypatch):
    said = []
    _, s = bowl_run(said, monkeypatch, global_batch=128, micro_batch=32, batch_range=(64, 128))
    profiles = [each.profile for each in said if each.profile is not None]
    assert profiles
    for profile in profiles:
        assert (profile.pieces, profile.samples, profile.most_samples) == (4, 32, 32)
        assert (profile.batch_initial, profile.batch_low, profile.batch_high) == (128, 64, 128)
        assert profile.compute_s > 0.0
        assert profile.step_s >= 4 * profile.compute_s
    assert s.global_batch == 128


def test_of_a_new_group_what_is_measured_goes_along_three_times_early_and_then_at_most_once_a_second(monkeypatch):
    said = []
    monkeypatch.setattr("sublet.train.sessions.report.EVERY_S", 0.0)
    monkeypatch.setattr("sublet.train.sessions.report.PROFILE_EVERY_S", math.inf)  # no second is ever over
    bowl = Bowl(4)
    with train.session(
        bowl, torch.optim.SGD(bowl.parameters(), lr=0.1), TensorDataset(torch.zeros(64, 4)), global_batch=2
    ) as s:
        s._link.say = lambda message: said.append(message) if isinstance(message, Stepped) else None
        s._strategy.report._profiled_s = 0.0
        for (c,) in s.batches(epochs=1):
            s.step(bowl(c))
            if s.steps == 20:
                s._strategy.report.joined(s._progress, generation=1, work=0.0, source="fresh")
    told = [each.step for each in said if each.profile is not None]
    assert told == [4, 7, 10, 20, 23, 26]  # of three full steps each; the very first one of a group is none


def trained_by_batch(monkeypatch, order=None):
    """The batch of each micro-batch of a session; `order` is that of the plan of its controller, None without one."""
    samples = torch.randn(1024, 50, generator=torch.Generator().manual_seed(0))
    bowl, batches = Bowl(50), []
    optimizer = torch.optim.SGD(bowl.parameters(), lr=1e-12)
    agent, worker = socket.socketpair()

    def opened(link, _):
        link.line = AgentLine(worker, "w")
        link.line.hear(to_line(Regroup(worker_id="w", generation=1, rank=0, world=1, batch=order)))

    if order is not None:
        monkeypatch.setattr("sublet.train.link.agent_line.ControllerLink.open", opened)
    more = {"global_batch": 8, "micro_batch": 2, "batch_range": (4, 32)}
    with agent, worker, train.session(bowl, optimizer, TensorDataset(samples), **more) as s:
        for (c,) in s.batches(epochs=1):
            s.step(bowl(c))
            batches.append(s.global_batch)
    return s, batches


def test_without_a_controller_the_batch_grows_by_itself(monkeypatch):
    s, batches = trained_by_batch(monkeypatch)
    assert (batches[0], batches[-1]) == (8, 32)
    assert s.noise > 32


def test_under_a_controller_the_batch_waits_for_the_plan(monkeypatch):
    s, batches = trained_by_batch(monkeypatch, 0)
    assert set(batches) == {8}
    assert s.noise > 32  # by itself it would have grown


@pytest.mark.parametrize(("order", "trained"), [(6, 6), (1000, 32), (1, 4)])
def test_the_batch_of_the_plan_is_kept_within_the_range(order, trained, monkeypatch):
    assert set(trained_by_batch(monkeypatch, order)[1]) == {trained}


def test_a_plan_that_names_no_batch_leaves_the_one_that_another_named(monkeypatch):
    s, _ = trained_by_batch(monkeypatch, 6)
    s._strategy.steps.obey(0)
    assert s.global_batch == 6


class Event:
    """A mark in a stream whose device is past it when it is told so; to wait for it is refused."""

    past, clock = False, Clock()

    def __init__(self, *, enable_timing):
        assert enable_timing
        self.at_s = None

    def record(self):
        self.at_s = Event.clock()

    def query(self):
        return Event.past

    def elapsed_time(self, other):
        assert Event.past, "nobody waits for a device"
        return (other.at_s - self.at_s) * 1e3


def test_on_a_gpu_marks_are_read_once_the_device_is_past_them_and_nobody_waits(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "clock", clock)
    watch = Stopwatch(torch.device("cuda"), clock)
    for _ in range(3):
        a_step(watch, clock)
    assert watch.take() is None  # they are under way
    monkeypatch.setattr(Event, "past", True)
    a_step(watch, clock)
    times = watch.take()
    assert (times.pieces, times.samples, times.step_s, times.data_s) == (2, 8, 18.0, 1.0)
    assert times.compute_s == pytest.approx(2.5)  # from the first that is given to the last backward: a load in between
    assert (times.wait_s, times.update_s) == (pytest.approx(3.0), pytest.approx(4.0))

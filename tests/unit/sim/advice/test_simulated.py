"""An advised cluster run by the kernel: sums that can be done by hand, and agreement with the light replay."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.advise.checkpointing import Checkpoints, anchors_for
from sublet.domain.units import BYTES_PER_GBIT
from sublet.errors import InvalidValue
from sublet.sim.advice.replay import replayed
from tests.rigs.advice_by_kernel import simulated
from tests.rigs.advised import ON_DEMAND, SPOT, chosen, trace

RNG = np.random.default_rng


def test_on_demand_it_takes_a_boot_a_start_and_the_training():
    choice, ask = chosen(40_000, (ON_DEMAND,), keeper="nothing", steady=4)
    run = simulated(choice, ask, (), rng=RNG(0), windows=3)
    hours = (10.0 + 20.0 + 10_000.0) / 3600.0
    assert run.hours_W == pytest.approx(hours)
    assert run.usd_W == pytest.approx(4 * 1.0 * hours)
    assert run.traces == ()


def test_a_market_that_falls_is_waited_for_and_not_paid_meanwhile():
    choice, ask = chosen(400_000)
    calm = trace([(0.0, 8), (1e6, 8)], 2e6)
    undisturbed = simulated(choice, ask, [calm], rng=RNG(0), windows=1)
    assert undisturbed.reclaims_W[0] == 0
    gap_s = 5_000.0
    holed = trace([(0.0, 8), (50_000.0, 0), (50_000.0 + gap_s, 8)], 2e6)
    run = simulated(choice, ask, [holed], rng=RNG(3), windows=40)
    met = run.reclaims_W > 0
    assert met.any()
    assert not met.all()
    late_s = 3600.0 * (run.hours_W[met] - undisturbed.hours_W[0])
    redone_s = choice.checkpoint_every_s + choice.checkpoint_write_s
    assert (late_s >= gap_s).all()
    assert (late_s <= gap_s + redone_s + ask.provision_s + ask.profile.restart_s + 1e-6).all()
    spot_usd = 4 * 0.25
    paid_h = run.hours_W[met] - gap_s / 3600.0
    assert run.usd_W[met] == pytest.approx(spot_usd * paid_h, rel=1e-6)


def test_the_kernel_and_the_light_replay_agree_on_a_market_that_comes_and_goes():
    choice, ask = chosen(400_000)
    rows = [(1_000.0 * at, 8 if at % 9 else 2) for at in range(400)]
    market = trace(rows, 400_000.0)
    ours = simulated(choice, ask, [market], rng=RNG(1), windows=30)
    light = replayed(choice, ask, [market], rng=RNG(1), windows=30)
    assert ours.hours.p50 == pytest.approx(light.hours.p50, rel=0.05)
    assert ours.usd.p50 == pytest.approx(light.usd.p50, rel=0.05)


def test_anchors_are_rented_beside_the_ledger_and_take_checkpoints_as_fast_as_they_can():
    choice, ask = chosen(400_000, (SPOT, ON_DEMAND), keeper="anchors")
    job = Checkpoints(state_bytes=ask.profile.state_bytes)
    anchor, count = anchors_for(job, choice.nodes)
    write_s = job.state_bytes / (count * anchor.gbit_per_s * BYTES_PER_GBIT)
    assert choice.checkpoint_write_s == pytest.approx(write_s)
    run = simulated(choice, ask, [trace([(0.0, 8), (1e6, 8)], 2e6)], rng=RNG(0), windows=1)
    trains_s = ask.samples / choice.nodes * (1.0 + write_s / choice.checkpoint_every_s)
    hours = (ask.provision_s + ask.profile.restart_s + trains_s) / 3600.0
    assert run.hours_W == pytest.approx(hours)
    ledger_usd = choice.nodes * SPOT.price.usd_per_h * hours
    assert run.usd_W == pytest.approx(ledger_usd + count * anchor.usd_per_h * hours)


def test_a_loss_sets_back_to_the_last_checkpoint_that_anchors_have():
    choice, ask = chosen(400_000, (SPOT, ON_DEMAND), keeper="anchors")
    calm = simulated(choice, ask, [trace([(0.0, 8), (1e6, 8)], 2e6)], rng=RNG(0), windows=1)
    holed = trace([(0.0, 8), (50_000.0, 0), (55_000.0, 8)], 2e6)
    run = simulated(choice, ask, [holed], rng=RNG(3), windows=40)
    met = run.reclaims_W > 0
    assert met.any()
    redone_s = 3600.0 * (run.hours_W[met] - calm.hours_W[0]) - 5_000.0 - ask.provision_s - ask.profile.restart_s
    assert (redone_s >= -1e-6).all()
    assert (redone_s <= choice.checkpoint_every_s + choice.checkpoint_write_s + 1e-6).all()
    assert redone_s.max() > 0.0


def test_spot_without_a_trace_is_refused():
    choice, ask = chosen(40_000, (SPOT,))
    with pytest.raises(InvalidValue, match="traces"):
        simulated(choice, ask, (), rng=RNG(0))

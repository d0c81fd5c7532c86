from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet.market.forecast.score import Foreknown, ParcaeForecast, Persistence
from sublet.perf.grids import SUSPENDED, spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.perf.parcae import parcae_costs, parcae_rates
from sublet.planning.lookahead import Contender
from sublet.planning.objective import Objective, SpotPrices
from sublet.sim.one_job import run_on_market
from sublet.spot.bamboo import Bamboo
from sublet.spot.liveput import Liveput
from sublet.spot.policies import CheckpointRestart, GreedyLive, Ideal, Observation, Parcae, Scripted, oracle
from sublet.spot.record import Record

COSTS = LinearCosts(layers=Layers((1e8,) * 13), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
RATES = {(wide, deep): 10.0 * wide**0.9 * deep**0.8 for deep in (2, 3, 4) for wide in range(1, 12 // deep + 1)}
POLICIES = {
    "checkpoint-restart": CheckpointRestart(),
    "greedy-live": GreedyLive(),
    "parcae": Parcae(forecaster=Persistence()),
    "parcae, published": Parcae(forecaster=ParcaeForecast(least=0, most=12)),
    "bamboo": Bamboo(deep=3),
    "liveput": Liveput(),
    "liveput, money": Liveput(money=SpotPrices(usd_per_sample=1e-4, usd_per_h=1.0)),
}


def job(**more):
    return spot_job("toy", RATES, COSTS, **more)


def walk(seed, ticks=80, most=12):
    rng = np.random.default_rng(seed)
    now, path = 8, []
    for _ in range(ticks):
        if rng.random() < 0.3:
            now = int(np.clip(now + rng.integers(-4, 5), 0, most))
        path.append(now)
    return path


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_nobody_does_better_than_the_oracle_nor_that_better_than_ideal(name, seed):
    capacity, toy = walk(seed), job()
    best = run_on_market(toy, oracle(toy, Record(capacity=tuple(capacity))), capacity).samples
    assert best <= run_on_market(toy, Ideal(), capacity).samples
    if name != "bamboo":  # its constants are its own
        assert run_on_market(toy, POLICIES[name], capacity).samples <= best * (1 + 1e-9)


@pytest.mark.parametrize("name", POLICIES)
def test_a_grid_never_needs_more_than_there_is(name):
    for seed in range(4):
        capacity, toy = walk(seed), job()
        done = run_on_market(toy, POLICIES[name], capacity)
        assert all(toy.use_C[config] <= now for config, now in zip(done.config_T, capacity, strict=True))
        assert done.usd <= sum(capacity) * 0.918 / 60 + 1e-9


def test_below_the_memory_bound_the_job_is_suspended_and_comes_back():
    capacity = [8] * 5 + [1] * 5 + [8] * 5
    toy = job()
    done = run_on_market(toy, Liveput(), capacity)
    assert done.config_T[5:10] == (SUSPENDED,) * 5
    assert done.suspended_s == 300.0
    assert done.config_T[-1] != SUSPENDED


def test_a_calm_market_is_ridden_without_a_change():
    toy = job()
    done = run_on_market(toy, Liveput(), [9] * 60)
    assert done.changes == 1
    assert len(set(done.config_T)) == 1
    assert done.config_T[0] == toy.fastest(9)


def test_with_the_truth_as_forecast_looking_far_is_the_oracle():
    for seed in range(3):
        capacity, toy = walk(seed, ticks=40), job()
        truth = Foreknown(truth=np.array(capacity, dtype=float))
        seeing = run_on_market(toy, Parcae(steps=40, forecaster=truth), capacity).samples
        best = run_on_market(toy, oracle(toy, Record(capacity=tuple(capacity))), capacity).samples
        if min(capacity) >= toy.least:  # it has no suspended state
            assert seeing == pytest.approx(best)


def test_notice_saves_at_most_what_can_be_made_ready():
    capacity = [12] * 5 + [8] * 5 + [5] * 5
    plain = job()
    script = Scripted((1 + plain.grids[1:].index((3, 4)),) * 5 + (plain.at[2, 3],) * 5 + (plain.at[1, 4],) * 5)
    slow, fast = (run_on_market(plain, script, capacity, notice_s=notice_s).samples for notice_s in (0.0, 3.0))
    rates = [plain.rate_C[plain.at[grid]] for grid in ((2, 3), (1, 4))]
    assert 0 < fast - slow <= 3.0 * sum(rates) + 1e-9
    ready = [COSTS.ready_s(2, 3, grow=False), COSTS.ready_s(1, 4, grow=True)]
    all_day = run_on_market(plain, script, capacity, notice_s=200.0).samples
    assert all_day - slow <= sum(r * s for r, s in zip(rates, ready, strict=True)) + 1e-9


def test_what_was_prepared_for_something_else_is_of_no_use():
    class Elsewhere(Scripted):
        def start(self, job, before):
            agent = super().start(job, before)
            choose = agent.decide

            class Wrong:
                def decide(self, seen):
                    return replace(choose(seen), prepare=job.at[1, 2])

            return Wrong()

    toy, capacity = job(), [12] * 5 + [8] * 5
    told = (toy.at[3, 4],) * 5 + (toy.at[2, 3],) * 5
    right, wrong = (
        run_on_market(toy, policy(told), capacity, notice_s=30.0).samples for policy in (Scripted, Elsewhere)
    )
    assert wrong == pytest.approx(run_on_market(toy, Scripted(told), capacity).samples)
    assert right > wrong


def test_a_loss_between_ticks_is_met_when_it_happens_and_by_the_blind_at_once_too():
    toy = job()
    record = Record(capacity=(12,) * 3 + (6,) * 3, between=((150.0, 6),))
    for policy in (Liveput(), Parcae(forecaster=Persistence()), GreedyLive()):
        early = run_on_market(toy, policy, record).samples
        late = run_on_market(toy, policy, Record(capacity=(12,) * 3 + (6,) * 3)).samples
        assert early < late  # half a minute less on many instances


def test_with_money_fewer_instances_are_held_the_less_a_sample_is_worth():
    toy, capacity = job(), [12] * 60
    usd = [
        run_on_market(toy, Liveput(money=SpotPrices(usd_per_sample=value, usd_per_h=1.0)), capacity, usd_per_h=1.0).usd
        for value in (1e-7, 1.2e-5, 3e-5, 1e-2)
    ]
    assert usd[0] == 0.0  # it costs more than it is worth
    assert usd == sorted(usd)
    assert usd[-1] <= 12.0 + 1e-9


def test_instances_given_back_take_their_time_to_come_back():
    toy = job()
    capacity = [12] * 30
    money = SpotPrices(usd_per_sample=1e-2, usd_per_h=1.0)
    prompt = run_on_market(toy, Liveput(money=money), capacity, boot_s=0.0).samples
    slow = run_on_market(toy, Liveput(money=money), capacity, boot_s=45.0).samples
    assert slow <= prompt


def test_a_better_contender_takes_the_lead_and_an_equal_one_does_not():
    class Gloomy:
        def forecast(self, history, steps):
            return np.zeros(steps)  # all will be lost, so nothing is worth starting

    toy, capacity = job(), [9] * 120
    gloomy, calm = Contender(Gloomy(), 5), Contender(Persistence(), 5)
    alone = run_on_market(toy, Liveput(contenders=(gloomy,)), capacity, before=[9, 8] * 30).samples
    led = run_on_market(toy, Liveput(contenders=(gloomy, calm)), capacity, before=[9, 8] * 30).samples
    best = run_on_market(toy, Liveput(contenders=(calm,)), capacity, before=[9, 8] * 30).samples
    assert led == pytest.approx(best)
    assert alone <= led


def test_a_calm_market_is_looked_at_farther():
    calm, busy = [9.0] * 400, [9.0, 8.0] * 200
    asked = []

    class Asked:
        def forecast(self, history, steps):
            asked.append(steps + 1)
            return np.full(steps, history[-1])

    for history in (calm, busy):
        seen = Observation(history=np.array(history), was=int(history[-2]), held=SUSPENDED, left_s=0.0, first=False)
        Contender(Asked(), 10, gaps=2.5).look(Objective(job()), seen, SUSPENDED, 0.0)
    assert asked[0] > 30
    assert asked[1] == 10


def test_bamboo_survives_one_loss_in_a_pipeline():
    toy = job()
    done = run_on_market(toy, Bamboo(deep=3), [9] * 5 + [8] * 5)
    assert done.samples > 0
    assert done.config_T[0] == toy.at[3, 3]


def test_the_whole_trace_of_bert_gives_the_published_sum_and_changes():
    from sublet.studies.liveput.study import part_of

    bert, part = spot_job("bert", parcae_rates("bert"), parcae_costs("bert")), part_of("full")
    done = run_on_market(bert, Parcae(forecaster=Foreknown(truth=part.known)), part.capacity)
    assert round(done.samples) == 18_075_335
    assert done.changes == 118


def test_nonsense_is_refused():
    with pytest.raises(InvalidValue, match="contenders"):
        Liveput(contenders=())
    with pytest.raises(InvalidValue, match="capacity"):
        run_on_market(job(), Ideal(), [])
    with pytest.raises(InvalidValue, match="rates"):
        spot_job("none", {}, COSTS)

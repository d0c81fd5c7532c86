"""Random jobs on random clouds under every policy: no law breaks, everything adds up, and it happens again alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.actions import RentNode, ResizeJob, StartJob, StopJob
from sublet.domain.events import (
    JobFinished,
    JobResized,
    JobStarted,
    JobSubmitted,
    NodeLost,
    NodeReleased,
    PriceChanged,
    RentRefused,
)
from sublet.domain.money import GRAINS_PER_USD, Money, Price
from sublet.kernel.journal import header_line, line_from, replay
from sublet.perf.speedup import Linear
from sublet.sim.simulator import Run, simulate
from sublet.sim.world import FRICTIONLESS
from sublet.testing.strategies import clouds, jobs, markets, offers, policies, reordered
from sublet.testing.values import Changes
from tests.rigs.sizes import examples

US = 1_000_000


@dataclass
class Watched:
    """A run and everything that was heard of it."""

    run: Run
    heard: list = field(default_factory=list)
    journal: list = field(default_factory=list)

    def events(self, *kinds):
        return [event for event, _ in self.heard if isinstance(event, kinds)]

    def orders(self, *kinds):
        return [(event.at_s, order) for event, orders in self.heard for order in orders if isinstance(order, kinds)]


def watched(workload, policy, cloud, *, seed=0, checked=False):
    heard = []
    run = simulate(
        workload,
        policy,
        cloud,
        seed=seed,
        checked=checked,
        watch=lambda event, orders: heard.append((event, [*orders])),
    )
    journal = [header_line(cloud.offers, cloud.limits, cloud.budget, cloud.quotas)]
    return Watched(run, heard, journal + [line_from(event, orders) for event, orders in heard])


# ---------------------------------------------------------------------- laws


@settings(max_examples=examples(250))
@given(jobs(), policies, clouds(), st.integers(0, 3))
def test_no_law_breaks_and_every_job_finishes_once_there_is_supply(workload, policy, cloud, seed):
    run = simulate(workload, policy, cloud, seed=seed, checked=True)
    assert run.unfinished == ()
    assert run.metrics.finished == len(workload)


@settings(max_examples=examples(60))
@given(jobs(), policies, clouds(), st.integers(0, 3))
def test_a_journal_replays_to_the_same_orders_and_the_same_seed_writes_it_again(workload, policy, cloud, seed):
    first = watched(workload, policy, cloud, seed=seed)
    second = watched(workload, policy, cloud, seed=seed)
    assert "\n".join(first.journal) == "\n".join(second.journal)
    kernel = replay(first.journal)
    assert kernel.seen == len(first.heard)
    assert kernel.ledger.spent(kernel.now_s) == first.run.record.spend[-1][1]


# ---------------------------------------------------------------------- money


def bill_in_grains(watched_run, cloud):
    """Every node from order to end, interval by interval, in fractions of dollars."""
    prices = {offer.id: [(0, offer.price)] for offer in cloud.offers}
    for event in watched_run.events(PriceChanged):
        prices[event.offer_id].append((round(event.at_s * US), event.price))
    begun = {order.node_id: (order.offer_id, round(at_s * US)) for at_s, order in watched_run.orders(RentNode)}
    ended = {event.node_id: round(event.at_s * US) for event in watched_run.events(NodeLost, NodeReleased)}
    refused = {event.node_id for event in watched_run.events(RentRefused)}
    now_us = round(watched_run.heard[-1][0].at_s * US)
    usd = Fraction(0)
    for node_id, (offer_id, start_us) in begun.items():
        if node_id in refused:
            continue
        until_us = ended.get(node_id, now_us)
        steps = [*prices[offer_id], (until_us + US * 10**6, None)]
        for (since_us, price), (next_us, _) in pairwise(steps):
            overlap_us = min(next_us, until_us) - max(since_us, start_us)
            usd += Fraction(price.micro_usd_per_h, 10**6) / 3600 * Fraction(max(0, overlap_us), US)
        if node_id in ended:
            offer = next(offer for offer in cloud.offers if offer.id == offer_id)
            last = [price for since_us, price in _as_known_at_the_end(watched_run, offer, node_id)][-1]
            held_s = Fraction(until_us - start_us, US)
            charged_s = max(held_s, Fraction(offer.minimum_billing_s), begun_intervals_s(held_s, offer))
            usd += Fraction(last.micro_usd_per_h, 10**6) / 3600 * (charged_s - held_s)
    return usd * GRAINS_PER_USD


def begun_intervals_s(held_s, offer):
    by_s = Fraction(offer.billed_by_s)
    return math.ceil(held_s / by_s) * by_s if by_s else Fraction(0)


def _as_known_at_the_end(watched_run, offer, node_id):
    """The prices heard of before the node ended, several of which may be of that very instant."""
    known = [(0.0, offer.price)]
    for event, _ in watched_run.heard:
        if isinstance(event, PriceChanged) and event.offer_id == offer.id:
            known.append((event.at_s, event.price))
        if isinstance(event, NodeLost | NodeReleased) and event.node_id == node_id:
            break
    return known


@settings(max_examples=examples(80))
@given(jobs(), policies, clouds())
def test_the_dollars_of_a_run_are_its_leases_times_their_prices(workload, policy, cloud):
    done = watched(workload, policy, cloud)
    spent = done.run.record.spend[-1][1]
    assert spent.grains == bill_in_grains(done, cloud)
    assert done.run.metrics.usd == pytest.approx(spent.usd)
    spending = [money for _, money in done.run.record.spend]
    assert spending == sorted(spending)


@settings(max_examples=examples(60))
@given(jobs(), policies, clouds(owned=False))
def test_nothing_is_rented_that_the_burn_cap_does_not_allow(workload, policy, cloud):
    if cloud.budget.burn is None:
        return
    price = {offer.id: offer.price.micro_usd_per_h for offer in cloud.offers}
    held = {}
    for event, orders in watched(workload, policy, cloud).heard:
        if isinstance(event, PriceChanged):
            price[event.offer_id] = event.price.micro_usd_per_h
        elif isinstance(event, NodeLost | NodeReleased | RentRefused):
            del held[event.node_id]
        for order in orders:
            if isinstance(order, RentNode):
                held[order.node_id] = order.offer_id
                assert sum(price[offer_id] for offer_id in held.values()) <= cloud.budget.burn.micro_usd_per_h


@st.composite
def clouds_with_a_purse(draw):
    """A cloud whose offers say truly how long giving a node up takes, and a purse of cents or of dollars."""
    cloud = draw(clouds(owned=False))
    wind_down_s = cloud.physics.release_s
    most = draw(st.sampled_from([1, 2, 5]))  # at most so many times the list price is ever paid
    listed = [replace(o, wind_down_s=wind_down_s, cap=Price(most * o.price.micro_usd_per_h)) for o in cloud.offers]
    purse = Money.from_usd(Decimal(draw(st.integers(0, 60))) / draw(st.sampled_from([10, 100])))
    return replace(cloud, offers=listed, budget=replace(cloud.budget, purse=purse))


@settings(max_examples=examples(150))
@given(jobs(), policies, clouds_with_a_purse())
def test_a_purse_is_never_overspent(workload, policy, cloud):
    purse = cloud.budget.purse
    run = simulate(workload, policy, cloud, checked=True)
    assert run.record.spend
    assert all(money <= purse for _, money in run.record.spend)


# ---------------------------------------------------------------------- time and work


@settings(max_examples=examples(80))
@given(jobs(), policies, clouds())
def test_the_figures_of_a_run_agree_with_what_was_heard_of_it(workload, policy, cloud):
    done = watched(workload, policy, cloud)
    submitted = {event.job.id: event.at_s for event in done.events(JobSubmitted)}
    finished = {event.job_id: event.at_s for event in done.events(JobFinished)}
    times = [finished[job_id] - submitted[job_id] for job_id in submitted]
    span_s = max(finished.values()) - min(submitted.values())
    figures = done.run.metrics
    assert figures.mean_s == pytest.approx(sum(times) / len(times))
    assert figures.max_s == pytest.approx(max(times))
    assert figures.makespan_s == pytest.approx(span_s)
    assert figures.mean_jobs * span_s == pytest.approx(sum(times))  # Little's law
    assert figures.losses == len(done.events(NodeLost))
    assert 0 <= figures.paused_gpu_hours <= figures.used_gpu_hours <= figures.gpu_hours * (1 + 1e-12)
    segments = sum(s.gpus * (s.end_s - s.start_s) for s in done.run.record.segments)
    assert segments / 3600 == pytest.approx(figures.used_gpu_hours)


def work_done(done, workload):
    """Per job, the work that its GPUs did from the answers that it trains to the next order or loss."""
    speed = {job.id: job.speed for job in workload}
    training = {}  # job -> (spread, trains from)
    spread_of, total = {}, dict.fromkeys(speed, 0.0)
    on_node = {}

    def halt(job_id, at_s):
        spread, since_s = training.pop(job_id, ((), at_s))
        if at_s > since_s:
            total[job_id] += speed[job_id].rate("", spread, 0.0) * (at_s - since_s)

    for event, orders in done.heard:
        if isinstance(event, JobFinished):
            halt(event.job_id, event.at_s)
        elif isinstance(event, JobStarted | JobResized):
            training[event.job_id] = (spread_of[event.job_id], event.resumes_s)
        elif isinstance(event, NodeLost):
            for job_id, nodes in on_node.items():
                if event.node_id in nodes:
                    halt(job_id, event.at_s)
        for order in orders:
            if isinstance(order, StartJob | ResizeJob | StopJob):
                halt(order.job_id, event.at_s)
            if isinstance(order, StartJob | ResizeJob):
                spread_of[order.job_id] = tuple(gpus for _, gpus in order.placement)
                on_node[order.job_id] = {node_id for node_id, _ in order.placement}
    return total


@settings(max_examples=examples(80))
@given(jobs(), policies, clouds(losses=False))
def test_without_losses_every_job_does_exactly_its_work(workload, policy, cloud):
    done = watched(workload, policy, cloud)
    for job in workload:
        assert work_done(done, workload)[job.id] == pytest.approx(job.work)


@settings(max_examples=examples(80))
@given(jobs(), policies, clouds())
def test_losses_cost_work_and_never_give_any(workload, policy, cloud):
    done = watched(workload, policy, cloud)
    for job in workload:
        assert work_done(done, workload)[job.id] >= job.work * (1 - 1e-9)


@settings(max_examples=examples(60))
@given(jobs(speeds=st.just(Linear())), policies, clouds(losses=False))
def test_a_linear_job_that_was_never_moved_trains_for_its_work_over_its_gpus(workload, policy, cloud):
    done = watched(workload, policy, cloud)
    for job in workload:
        row = done.run.record.jobs[job.id]
        if row.starts == 1 and row.resizes == 0:
            assert row.gpu_s - row.paused_gpu_s == pytest.approx(job.work)
            pause_s = job.restart_s if job.pauses is None else job.pauses.every_s
            assert row.finish_s >= row.start_s + pause_s


# ---------------------------------------------------------------------- what must not matter


@st.composite
def one_pool_clouds(draw):
    """Up to three offers of one pool without losses or friction, so that which node is which cannot matter."""
    cloud = draw(clouds(losses=False, owned=False, physics=st.just(FRICTIONLESS)))
    pool = cloud.offers[0].pool
    kept = [offer for offer in cloud.offers if offer.pool == pool]
    ids = {offer.id for offer in kept}
    changes = tuple(change for change in cloud.market() if change.offer_id in ids)
    limits = {offer_id: limit for offer_id, limit in cloud.limits.items() if offer_id in ids}
    quotas = {name: gpus for name, gpus in cloud.quotas.items() if name == pool}
    return type(cloud)(offers=kept, limits=limits, quotas=quotas, budget=cloud.budget, market=Changes(changes))


@settings(max_examples=examples(60))
@given(jobs(), policies, one_pool_clouds(), st.randoms(use_true_random=False))
def test_the_order_in_which_offers_are_listed_does_not_matter(workload, policy, cloud, random):
    shuffled = list(cloud.offers)
    random.shuffle(shuffled)
    a, b = simulate(workload, policy, cloud), simulate(workload, policy, reordered(cloud, shuffled))
    assert {j: row.finish_s for j, row in a.record.jobs.items()} == {
        j: row.finish_s for j, row in b.record.jobs.items()
    }
    assert a.record.spend[-1] == b.record.spend[-1]


@st.composite
def two_orders_of_one_market(draw):
    """Changes of different offers at one instant, in two orders."""
    drawn = draw(offers())
    changes = draw(markets(drawn, losses=False))
    order = draw(st.permutations([offer.id for offer in drawn]))
    other = sorted(changes, key=lambda change: (change.at_s, order.index(change.offer_id)))
    return drawn, changes, tuple(other)


@settings(max_examples=examples(40))
@given(jobs(), policies, two_orders_of_one_market())
def test_the_order_of_offers_that_change_at_one_instant_does_not_matter(workload, policy, case):
    drawn, changes, other = case
    runs = [simulate(workload, policy, _cloud(drawn, market)) for market in (changes, other)]
    rows = [{job_id: (row.start_s, row.finish_s) for job_id, row in run.record.jobs.items()} for run in runs]
    assert rows[0] == rows[1]
    assert runs[0].record.spend[-1] == runs[1].record.spend[-1]


def _cloud(drawn, market):
    from sublet.sim.simulator import Cloud

    return Cloud(offers=drawn, market=Changes(market))

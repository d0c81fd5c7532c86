"""The split bill against one that looks at every node at every moment, over random lives of a kernel."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import (
    AvailabilityChanged,
    JobFinished,
    NodeLost,
    NodeNoticed,
    NodeReady,
    NodeSilent,
    PriceChanged,
    PriceDoubted,
)
from sublet.domain.money import Price, microseconds
from sublet.domain.plan import Phase
from sublet.kernel.journal import steps_from
from sublet.kernel.kernel import Kernel
from sublet.policies.equal import Equal
from sublet.runtime.controller.money.bill import Bill
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.booking import booked
from tests.rigs.sizes import examples

OFFERS = (
    an_offer("o", gpus=3, usd_per_h="0.999999", pool="p", minimum_billing_s=60.0),
    an_offer("b", gpus=7, usd_per_h="3.3", pool="q", gpu="A100", billed_by_s=90.0),
)
LIMITS = {"o": Limit(min_nodes=1, max_nodes=3), "b": Limit(max_nodes=2)}
verbs = st.sampled_from(["submit", "submit", "price", "doubt", "lose", "notice", "finish", "supply", "silent", "heard"])
happenings = st.lists(st.tuples(verbs, st.integers(0, 5), st.floats(0.0, 500.0)), min_size=5, max_size=25)


def _life(script):
    driver = Driver(OFFERS, limits=LIMITS)
    now_s, count = 0.0, 0
    for verb, which, passed_s in script:
        now_s = max(now_s, driver.kernel.now_s) + passed_s
        nodes, jobs = sorted(driver.kernel.cluster.nodes), sorted(driver.kernel.jobs)
        if verb == "submit":
            count += 1
            driver.submit(a_job(f"j{count}", submit_s=now_s, gpus=1 + which, max_gpus=2 + which))
        elif verb == "price":
            driver.tell(PriceChanged(now_s, "o" if which % 2 else "b", Price(1_000_003 * (1 + which))))
        elif verb == "doubt" and nodes:
            driver.tell(PriceDoubted(now_s, "o" if which % 2 else "b", Price(1_000_003 * (1 + which))))
        elif verb == "lose" and nodes:
            driver.tell(NodeLost(now_s, nodes[which % len(nodes)]))
        elif verb == "notice" and nodes:
            driver.tell(NodeNoticed(now_s, nodes[which % len(nodes)], now_s + 60.0))
        elif verb == "silent" and nodes:
            driver.tell(NodeSilent(now_s, nodes[which % len(nodes)]))
        elif verb == "heard" and nodes:
            driver.tell(NodeReady(now_s, nodes[which % len(nodes)]))
        elif verb == "finish" and jobs:
            driver.tell(JobFinished(now_s, jobs[which % len(jobs)]))
        elif verb == "supply":
            driver.tell(AvailabilityChanged(now_s, "b", which % 3))
        driver.settle(Equal())
    return driver.journal


@settings(max_examples=examples(60), deadline=None)
@given(happenings)
def test_parts_add_up_to_the_ledger_and_each_job_pays_for_what_it_held(script):
    journal = _life(script)
    kernel = Kernel(OFFERS, limits=LIMITS)

    def runs(job_id):
        return kernel.jobs[job_id].phase is Phase.RUNNING

    bill = Bill(kernel, runs, replaying=True)
    held: dict[str, Fraction] = defaultdict(Fraction)
    at_us = 0
    for step in steps_from(journal[1:], first=2):
        now_us = microseconds(step.event.at_s)
        for node in kernel.cluster.nodes.values():  # what every job held since the last event
            price = kernel.ledger.price(node.offer.id).micro_usd_per_h
            for job_id, gpus in node.jobs.items():
                held[job_id] += Fraction(price * (now_us - at_us) * gpus, node.offer.gpus_per_node)
        at_us = now_us
        assert booked(bill, step.event, step.orders) == step.orders  # the life that was lived, not one like it
    bill.settle(kernel.now_s)
    parts = {job_id: account.total.grains for job_id, account in bill.jobs.items()}
    assert sum(parts.values()) + bill.unused == kernel.ledger.spent(kernel.now_s).grains
    assert bill.unused >= 0
    for job_id, grains in held.items():
        lost = grains - parts.get(job_id, 0)  # by rounding down, once for every time that it was booked
        assert 0 <= lost <= 3 * len(journal)
    assert set(parts) <= set(held) | {job_id for job_id, grains in parts.items() if not grains}

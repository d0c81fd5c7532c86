"""One short life of a kernel, as lines of its journal."""

from __future__ import annotations

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged, JobFinished, NodeLost, NodeNoticed, PriceChanged
from sublet.domain.money import Price
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


def a_life():
    """Its journal: jobs, a price, a notice, a loss and an end."""
    driver = Driver(
        [an_offer("o", pool="p"), an_offer("b", pool="q", gpu="A100", gpus=2, usd_per_h="3")],
        limits={"o": Limit(min_nodes=1, max_nodes=2), "b": Limit(max_nodes=2)},
        budget=Budget(burn=Price.from_usd_per_h("6")),
    )
    driver.submit(a_job("a", work=900.0, gpus=4, max_gpus=8), a_job("c", gpus=2), a_job("d", gpus=2))
    driver.settle(Equal())
    driver.tell(PriceChanged(10.0, "b", Price.from_usd_per_h("2")))
    driver.settle(Equal())
    driver.tell(NodeNoticed(15.0, "n1", 20.0))
    driver.settle(Equal())
    driver.tell(AvailabilityChanged(30.0, "o", 2))
    driver.settle(Equal())
    held = next(node.id for node in driver.kernel.cluster.nodes.values() if node.jobs)
    driver.tell(NodeLost(31.0, held))
    driver.settle(Equal())
    driver.tell(JobFinished(40.0, "c"))
    driver.settle(Equal())
    return driver.journal

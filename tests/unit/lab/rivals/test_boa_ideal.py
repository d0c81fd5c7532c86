"""The policy of theory, where it falls short of a law that all policies keep in almost every situation."""

from __future__ import annotations

from sublet.domain.budget import Limit
from sublet.perf.speedup import PowerLaw
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.boa_ideal import BoaIdeal


def test_the_pools_of_three_jobs_are_settled_by_one_decision():
    offers = [an_offer("p", 2, "2", pool="p"), an_offer("q", 4, "2.5", pool="q", gpu="A100")]
    driver = Driver(offers, limits={"p": Limit(max_nodes=10), "q": Limit(max_nodes=2)})
    driver.submit(
        a_job("elastic", work=1124.0, speed=PowerLaw(exponent=0.7), gpus=10, min_gpus=3, max_gpus=12, restart_s=7.0),
        a_job("narrow", work=931.0, gpus=3, min_gpus=3, max_gpus=3),
        a_job("wide", work=1061.0, gpus=8, min_gpus=8, max_gpus=8),
    )
    driver.settle(BoaIdeal())
    assert BoaIdeal().decide(driver.kernel.snapshot()).shapes == {}

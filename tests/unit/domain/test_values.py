"""A value that exists is valid: whatever cannot be is refused, by the name of its field."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import pytest

from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.money import Money, Price
from sublet.domain.offer import Gpu, Market
from sublet.domain.plan import Plan
from sublet.domain.shape import Grid, Shape
from sublet.errors import InvalidValue
from sublet.sim.world import Physics
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.las import Las

NOT_FINITE = (math.nan, math.inf, -math.inf)
NEGATIVE = (-1, -0.001)
NO_COUNT = (-1, 1.5, 2.0, True, "2", math.nan)
NO_NAME = ("", " ", " a", "a ", "a\nb", "\t")

JOB = a_job(gpus=2, max_gpus=4)
OFFER = an_offer()
GPU = Gpu(name="T4", vendor="nvidia", mem_gib=16.0)

# value, its field, what the error calls it, what cannot be
TABLE = [
    (JOB, "id", "job id", NO_NAME),
    (JOB, "submit_s", "submit_s", (*NOT_FINITE, *NEGATIVE)),
    (JOB, "work", "work", (math.nan, -math.inf, *NEGATIVE, 0.0)),
    (JOB, "gpus", "gpus", (*NO_COUNT, 0, 5)),
    (JOB, "min_gpus", "min_gpus", (*NO_COUNT, 0)),
    (JOB, "max_gpus", "max_gpus", NO_COUNT),
    (JOB, "restart_s", "restart_s", (*NOT_FINITE, *NEGATIVE)),
    (JOB, "checkpoint_every_s", "checkpoint_every_s", (math.nan, -math.inf, -1.0, 0.0)),
    (JOB, "checkpoint_write_s", "checkpoint_write_s", (*NOT_FINITE, *NEGATIVE)),
    (JOB, "weight", "weight", (*NOT_FINITE, *NEGATIVE, 0.0)),
    (JOB, "deadline_s", "deadline_s", (*NOT_FINITE, *NEGATIVE)),
    (OFFER, "id", "offer id", NO_NAME),
    (OFFER, "gpu", "gpu", NO_NAME),
    (OFFER, "gpus_per_node", "gpus_per_node", (*NO_COUNT, 0)),
    (OFFER, "market", "market", ("spot", "", None)),
    (OFFER, "minimum_billing_s", "minimum_billing_s", (*NOT_FINITE, *NEGATIVE)),
    (OFFER, "pool", "pool", (" p", "p ", "a\nb")),
    (OFFER, "hazard_per_h", "hazard_per_h", (*NOT_FINITE, *NEGATIVE)),
    (GPU, "name", "gpu", NO_NAME),
    (GPU, "mem_gib", "mem_gib", (*NOT_FINITE, *NEGATIVE)),
    *((GPU, field, field, (*NOT_FINITE, *NEGATIVE)) for field in ("fp32_tflops", "tf32_tflops", "fp16_tflops")),
    *((GPU, field, field, (*NOT_FINITE, *NEGATIVE)) for field in ("bf16_tflops", "mem_bw_gb_per_s")),
    *((GPU, field, field, (*NOT_FINITE, *NEGATIVE)) for field in ("nvlink_gb_per_s", "pcie_gb_per_s")),
    (Shape("p", 1), "pool", "pool", NO_NAME),
    (Shape("p", 1), "gpus", "gpus", (*NO_COUNT, 0)),
    (Shape("p", 1), "steady", "steady", (*NO_COUNT, 2)),
    (Shape("p", 1), "grid", "grid", (Grid(1, 2), Grid(2, 1))),
    (Grid(1, 1), "copies", "copies", (*NO_COUNT, 0)),
    (Grid(1, 1), "parts", "parts", (*NO_COUNT, 0)),
    (Shape("p", 1), "batch", "batch", (*NO_COUNT, 0)),
    (Limit(), "min_nodes", "min_nodes", NO_COUNT),
    (Limit(), "max_nodes", "max_nodes", NO_COUNT),
    (Limit(min_nodes=2, max_nodes=2), "max_nodes", "max_nodes", (0, 1)),
    (UNLIMITED, "purse", "purse", (Money(-1),)),
    (Price(1), "micro_usd_per_h", "price (micro-USD per hour)", NO_COUNT),
    (Plan(), "hold", "hold[o]", tuple({"o": bad} for bad in NO_COUNT)),
    (Plan(), "ask_again_s", "ask_again_s", (math.nan,)),
    (AvailabilityChanged(0.0, "o", 1), "nodes", "nodes", NO_COUNT),
    (Physics(), "provision_s", "provision_s", (*NOT_FINITE, *NEGATIVE)),
    (Physics(), "release_s", "release_s", (*NOT_FINITE, *NEGATIVE)),
    (Physics(), "notice_s", "notice_s", (*NOT_FINITE, *NEGATIVE)),
    (Physics(), "planning_s", "planning_s", (*NOT_FINITE, *NEGATIVE)),
    (Physics(), "round_s", "round_s", (*NOT_FINITE, *NEGATIVE)),
    (Las(), "threshold_gpu_s", "threshold_gpu_s", (*NOT_FINITE, *NEGATIVE, 0.0)),
]
CASES = [
    pytest.param(value, field, name, bads, id=f"{type(value).__name__}.{field}-{bads[0]!r}")
    for value, field, name, bads in TABLE
]


@pytest.mark.parametrize(("value", "field", "name", "bads"), CASES)
def test_nonsense_is_refused_by_the_name_of_its_field(value, field, name, bads):
    for bad in bads:
        with pytest.raises(InvalidValue) as caught:
            replace(value, **{field: bad})
        assert caught.value.field == name


@pytest.mark.parametrize(
    "value", [JOB, OFFER, GPU, Shape("p", 1), Limit(), UNLIMITED, Price(1), Money(1), Plan(), Las()]
)
def test_values_cannot_be_changed_once_they_exist(value):
    field = next(iter(type(value).__dataclass_fields__), "")
    with pytest.raises((FrozenInstanceError, AttributeError)):
        setattr(value, field, 1)
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        value.surprise = 1


def test_a_job_that_states_no_maximum_has_the_size_it_asked_for():
    assert a_job(gpus=3).max_gpus == 3
    assert a_job(gpus=3, max_gpus=5).max_gpus == 5


def test_a_job_may_not_ask_for_less_than_it_needs():
    with pytest.raises(InvalidValue, match="between min_gpus 4 and max_gpus 4"):
        a_job(gpus=2, min_gpus=4)


def test_never_taking_a_checkpoint_is_allowed():
    assert a_job(checkpoint_every_s=math.inf).checkpoint_every_s == math.inf


def test_a_pool_is_a_kind_and_size_on_a_market_unless_it_is_named():
    assert an_offer(gpus=8).pool == "T4x8:spot"
    assert an_offer(market=Market.ON_DEMAND).pool == "T4x4:on-demand"
    assert an_offer(pool="mine").pool == "mine"


def test_the_price_of_a_gpu_is_its_share_of_the_node():
    assert an_offer(gpus=4, usd_per_h="3.912").usd_per_gpu_h == pytest.approx(0.978)


def test_no_limit_is_the_default_of_every_limit():
    assert Budget() == UNLIMITED
    assert (UNLIMITED.burn, UNLIMITED.purse) == (None, None)
    assert (Limit().min_nodes, Limit().max_nodes) == (0, None)
    assert Budget(purse=Money(0)).purse == Money(0)

"""Offers to rent: a kind of node, somewhere, on one market, at a price."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from sublet.domain.money import Money, Price, microseconds
from sublet.domain.quantity import at_least, named, whole
from sublet.errors import InvalidValue

SANE_JUMP = 5  # no price that is meant moves further from its list price


class Market(StrEnum):
    """How a node is rented."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts about one kind of GPU; rates are dense peaks, an upper bound on what jobs reach. None = not recorded."""

    name: str
    vendor: str
    mem_gib: float
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    mem_bw_gb_per_s: float | None = None
    nvlink_gb_per_s: float = 0.0
    pcie_gb_per_s: float = 0.0

    def __post_init__(self) -> None:
        named("gpu", self.name)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float | int):
                at_least(field.name, value, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One line of a cloud's price list, for one market.

    `pool` names the set of nodes that one job may span. Offers of one pool must have the same GPU kind and node size;
    by default a pool is a kind on a market, so zones pool together and spot does not mix with on-demand.
    """

    id: str
    gpu: str
    gpus_per_node: int
    market: Market
    price: Price
    pool: str = ""
    cloud: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    minimum_billing_s: float = 60.0  # AWS bills Linux instances by the second, 60 s at least
    billed_by_s: float = 0.0  # every begun interval of this length is charged whole, as of clouds that bill by the hour
    hazard_per_h: float = 0.0  # nodes that the cloud takes back, per node-hour, as far as is known
    reclaim_share: float = 0.0  # of the nodes held, what one reclaim takes, as far as is known; 0 = one at a time
    notice_s: float = 0.0  # before a node is taken back, as far as is known
    cap: Price | None = None  # the highest price that we ever pay: above it the cloud takes the node back
    boot_s: float = 0.0  # from the order to the first use, as far as is known; paid
    wind_down_s: float = 0.0  # from the decision to give a node up to the end of its bill, at most

    def __post_init__(self) -> None:
        named("offer id", self.id)
        named("gpu", self.gpu)
        whole("gpus_per_node", self.gpus_per_node, 1)
        at_least("minimum_billing_s", self.minimum_billing_s, 0.0)
        at_least("billed_by_s", self.billed_by_s, 0.0)
        at_least("hazard_per_h", self.hazard_per_h, 0.0)
        if not 0.0 <= self.reclaim_share <= 1.0:
            raise InvalidValue("reclaim_share", self.reclaim_share, "between 0 and 1")
        at_least("notice_s", self.notice_s, 0.0)
        at_least("boot_s", self.boot_s, 0.0)
        at_least("wind_down_s", self.wind_down_s, 0.0)
        if self.cap is None:
            object.__setattr__(self, "cap", Price(SANE_JUMP * self.price.micro_usd_per_h))
        elif self.cap < self.price:
            raise InvalidValue("cap", self.cap, f"at least the price, {self.price}")
        if not isinstance(self.market, Market):
            raise InvalidValue("market", self.market, " or ".join(Market))
        if not self.pool:
            object.__setattr__(self, "pool", f"{self.gpu}x{self.gpus_per_node}:{self.market}")
        named("pool", self.pool)

    @property
    def dearest(self) -> Price:
        """The highest price that we ever pay: every offer has a cap once it is made."""
        return self.price if self.cap is None else self.cap

    @property
    def reserve(self) -> Money:
        """The reserve for each node: the dearest possible ending, and as long once more.

        The second time pays for this node while others are being given up, so that not all need to go at once.
        """
        return self.ending(2 * self.wind_down_s)

    def ending(self, seconds: float) -> Money:
        """The dearest bill of a node that is gone after `seconds`."""
        return self.dearest.over(microseconds(seconds + max(self.minimum_billing_s, self.billed_by_s)))

    @property
    def usd_per_gpu_h(self) -> float:
        """The list price of one GPU for an hour."""
        return self.price.usd_per_h / self.gpus_per_node

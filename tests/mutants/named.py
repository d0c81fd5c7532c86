"""Faults that an audit planted and no test saw; each has a test now, which is named beside it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.draw import SOURCE

__all__ = ["NAMED", "Named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """`old` stands once in the file, and becomes `new`."""

    name: str
    file: str  # below src/sublet
    old: str
    new: str
    tests: tuple[str, ...]

    def source(self) -> str:
        """The whole file with the fault; what it was planted in must still be there."""
        text = (SOURCE / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise LookupError(f"{self.name}: {self.old!r} stands {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


PRICE = ("tests/unit/policies/price/test_constants.py",)
NAMED: tuple[Named, ...] = (
    Named(
        name="the ledger's minimum with the times that a cloud says",
        file="kernel/ledger.py",
        old="charged_us = meter.charged_us(end_us - start_us)",
        new="charged_us = meter.charged_us(now_us - start_us) if billed_to_s is None else 0",
        tests=("tests/unit/kernel/test_ledger.py",),
    ),
    Named(
        name="nobody is asked when a node that is gone frees money",
        file="kernel/kernel.py",
        old="if not self.supply.remove_released(node, event) and not wanted:",
        new="if not self.supply.remove_released(node, event):",
        tests=("tests/unit/kernel/test_kernel_purse.py",),
    ),
    Named(
        name="sizes leak where none are known",
        file="policies/price/beliefs.py",
        old="left_h_J = 1.0 / weight_J",
        new="left_h_J = asked.standing.gpu_hours_J / weight_J",
        tests=("tests/unit/policies/price/test_beliefs.py",),
    ),
    Named(
        name="sizes leak into what is guessed from the past",
        file="policies/price/beliefs.py",
        old="left = [_of_the_past(had_h, ended) for had_h in had_h_J]",
        new="left = [min(h, _of_the_past(had, ended)) for h, had in zip(asked.standing.gpu_hours_J, had_h_J)]",
        tests=("tests/unit/policies/price/test_beliefs.py",),
    ),
    Named(
        name="on demand is the dearest offer",
        file="runtime/controller/bill.py",
        old="self._list_price[gpu] = min(",
        new="self._list_price[gpu] = max(",
        tests=("tests/unit/runtime/controller/test_bill_split.py",),
    ),
    Named(
        name="on demand is a whole node for each GPU",
        file="runtime/controller/bill.py",
        old="offer.price.micro_usd_per_h // offer.gpus_per_node\n",
        new="offer.price.micro_usd_per_h\n",
        tests=("tests/unit/runtime/controller/test_bill_split.py",),
    ),
    Named(
        name="all that was useful is redone",
        file="runtime/controller/bill.py",
        old="account.useful * steps // max(of_steps, steps, 1)",
        new="account.useful",
        tests=("tests/unit/runtime/controller/test_bill_split.py",),
    ),
    Named(
        name="a fall takes one node of those there",
        file="sim/scenario.py",
        old="seen.losses / seen.falls / seen.mean_available",
        new="1.0 / seen.mean_available",
        tests=("tests/unit/sim/test_scenario.py",),
    ),
    Named(
        name="mip knows no pauses",
        file="policies/mip/tables.py",
        old="pause_s = 0.0 if stays else job.restart_s",
        new="pause_s = 0.0",
        tests=("tests/unit/policies/mip/test_policy.py",),
    ),
    Named(
        name="mip is not sticky",
        file="policies/mip/policy.py",
        old="stickiness: float = 0.02",
        new="stickiness: float = 0.0",
        tests=("tests/unit/policies/mip/test_policy.py",),
    ),
    Named(
        name="sia's power",
        file="policies/sia/policy.py",
        old="power: float = -0.5",
        new="power: float = -1.0",
        tests=("tests/unit/policies/sia/test_policy.py",),
    ),
    Named(
        name="sia's rounds",
        file="policies/sia/policy.py",
        old="ask_again_s=now_s + self.round_s if group else None",
        new="ask_again_s=None",
        tests=("tests/unit/policies/sia/test_policy.py",),
    ),
    Named(
        name="sia believes the pauses that are charged",
        file="studies/peers.py",
        old="SIA_ASSUMED_S.get(job.model, job.restart_s)",
        new="job.restart_s",
        tests=("tests/unit/studies/test_peers.py",),
    ),
    Named(
        name="boa shrinks by a tenth",
        file="policies/boa/widths.py",
        old="SHRINK = 0.99",
        new="SHRINK = 0.9",
        tests=("tests/unit/policies/boa/test_widths.py",),
    ),
    Named(
        name="price: the power of the work left",
        file="policies/price/cluster_split.py",
        old="SHORT_FIRST = 0.3 ",
        new="SHORT_FIRST = 0.4 ",
        tests=PRICE,
    ),
    Named(
        name="price: the power of the speed",
        file="policies/price/cluster_split.py",
        old="CONCAVE = 0.7 ",
        new="CONCAVE = 0.85 ",
        tests=PRICE,
    ),
    Named(
        name="price has no patience on rented GPUs",
        file="policies/price/plan.py",
        old="np.where(age_J > patience_s, -age_J, work_J)",
        new="work_J",
        tests=PRICE,
    ),
)

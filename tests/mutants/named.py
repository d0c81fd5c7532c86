"""Faults that an audit planted and no test saw; each has a test now, which is named beside it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.draw import path_of

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
        text = path_of(self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise LookupError(f"{self.name}: {self.old!r} stands {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


PRICE = ("tests/unit/policies/price/test_constants.py",)
PURSES = ("tests/unit/kernel/test_allowances.py",)
LATE, FILES = ("tests/unit/kernel/test_late.py",), ("tests/unit/kernel/test_file_budgets.py",)
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
        tests=("tests/unit/kernel/test_kernel_total.py",),
    ),
    Named(
        name="sizes leak where none are known",
        file="policies/price/beliefs.py",
        old="left_h_J = 1.0 / weight_J",
        new="left_h_J = asked.jobs.gpu_hours_J / weight_J",
        tests=("tests/unit/policies/price/test_beliefs.py",),
    ),
    Named(
        name="sizes leak into what is guessed from the past",
        file="policies/price/beliefs.py",
        old="power=SHORT_FIRST) / weight_J",
        new="power=SHORT_FIRST) / weight_J\n            left_h_J = np.minimum(left_h_J, asked.jobs.gpu_hours_J)",
        tests=("tests/unit/policies/price/test_beliefs.py",),
    ),
    Named(
        name="on demand is the dearest offer",
        file="runtime/controller/money/bill.py",
        old="self._list_price[gpu] = min(",
        new="self._list_price[gpu] = max(",
        tests=("tests/unit/runtime/controller/test_bill_split.py",),
    ),
    Named(
        name="on demand is a whole node for each GPU",
        file="runtime/controller/money/bill.py",
        old="offer.price.micro_usd_per_h // offer.gpus_per_node\n",
        new="offer.price.micro_usd_per_h\n",
        tests=("tests/unit/runtime/controller/test_bill_split.py",),
    ),
    Named(
        name="all that was useful is redone",
        file="runtime/controller/money/bill.py",
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
        file="policies/mip/policy.py",
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
        file="sublet_lab/rivals/sia/policy.py",
        old="power: float = -0.5",
        new="power: float = -1.0",
        tests=("tests/unit/lab/rivals/sia/test_policy.py",),
    ),
    Named(
        name="sia's rounds",
        file="sublet_lab/rivals/sia/policy.py",
        old="ask_again_s=now_s + self.round_s if group else None",
        new="ask_again_s=None",
        tests=("tests/unit/lab/rivals/sia/test_policy.py",),
    ),
    Named(
        name="sia believes the pauses that are charged",
        file="sublet_lab/studies/peers.py",
        old="SIA_ASSUMED_S.get(job.model, job.restart_s)",
        new="job.restart_s",
        tests=("tests/unit/lab/studies/test_peers.py",),
    ),
    Named(
        name="boa shrinks by a tenth",
        file="policies/boa/policy.py",
        old="SHRINK = 0.99",
        new="SHRINK = 0.9",
        tests=("tests/unit/policies/boa/test_widths.py",),
    ),
    Named(
        name="who stays until its GPUs are taken leaves them to those behind it",
        file="planning/turns.py",
        old="left[pool] -= state.gpus - snapshot.falling[state.job.id]",
        new="left[pool] -= 0",
        tests=("tests/unit/planning/test_turns.py",),
    ),
    Named(
        name="a job is left beside what it could have, as it is worth less than the tolerance",
        file="solve/mip/moves.py",
        old="near(start_J, *facts)",
        new="near(loss_JC.argmin(axis=1), *facts)",
        tests=("tests/unit/solve/mip/test_rounding.py",),
    ),
    Named(
        name="who is alone is made narrow",
        file="policies/price/settled.py",
        old=" & (jobs.own_J == NOTHING)",
        new="",
        tests=("tests/unit/policies/price/test_settled.py",),
    ),
    Named(
        name="where one pool is short and not all together, its GPUs cost nothing",
        file="policies/price/cluster_split.py",
        old="if (wishes.by_row(np.full(rows, LEAST)) <= most_R).all():",
        new="if wishes.gpus(LEAST) <= most_R.sum():",
        tests=("tests/unit/policies/price/test_going_rate.py",),
    ),
    Named(
        name="price: the power of the work left",
        file="policies/price/beliefs.py",
        old="SHORT_FIRST = 0.35 ",
        new="SHORT_FIRST = 0.45 ",
        tests=PRICE,
    ),
    Named(
        name="price: the power of the speed",
        file="policies/price/cluster_split.py",
        old="CONCAVE = 0.85 ",
        new="CONCAVE = 0.7 ",
        tests=PRICE,
    ),
    Named(
        name="price has no patience on rented GPUs",
        file="policies/price/policy.py",
        old="np.where(age_J > patience_s, -age_J, work_J)",
        new="work_J",
        tests=PRICE,
    ),
    Named(
        name="teams do not pay for their users",
        file="kernel/shares.py",
        old="found = ((Level.TEAM, job.team), (Level.USER",
        new="found = ((Level.USER, job.user), (Level.USER",
        tests=PURSES,
    ),
    Named(
        name="a new month counts what the last one spent",
        file="kernel/allowances.py",
        old="new = replace(old, opening=opening",
        new="new = replace(old, opening=old.opening",
        tests=PURSES,
    ),
    Named(
        name="a new month begins when somebody hears of it",
        file="kernel/spending.py",
        old="purses.roll(over_s)",
        new="purses.roll(event.at_s)",
        tests=PURSES,
    ),
    Named(
        name="a purse in all counts from when it was set",
        file="kernel/allowances.py",
        old="opening=0 if event.period is None else spent,",
        new="opening=spent,",
        tests=("tests/unit/kernel/test_periods.py",),
    ),
    Named(
        name="jobs that are promised GPUs get them from a purse that is spent",
        file="kernel/allowances.py",
        old="[*self.shares.jobs(holder), *promised]",
        new="[*self.shares.jobs(holder)]",
        tests=PURSES,
    ),
    Named(
        name="a job's own purse keeps nothing back to leave",
        file="kernel/allowances.py",
        old="if holder.level is Level.JOB else 0",
        new="if holder.level is Level.ORG else 0",
        tests=LATE,
    ),
    Named(
        name="nobody asks to be woken when a purse is spent",
        file="kernel/allowances.py",
        old="found.wake(now_s, lasts_us)",
        new="found.wake(now_s, math.inf)",
        tests=LATE,
    ),
    Named(
        name="a job's purse outlives it",
        file="kernel/allowances.py",
        old="for each in (own, Holder(Level.FILE, job.id)):",
        new="for each in (Holder(Level.FILE, job.id),):",
        tests=PURSES,
    ),
    Named(
        name="a job's file outlives it",
        file="kernel/allowances.py",
        old="for each in (own, Holder(Level.FILE, job.id)):",
        new="for each in (own,):",
        tests=FILES,
    ),
    Named(
        name="a purse pays above the cap",
        file="kernel/shares.py",
        old="return self.paid + min(price, self.cap) * passed_us",
        new="return self.paid + price * passed_us",
        tests=PURSES,
    ),
    Named(
        name="a purse pays for a job that stays on",
        file="kernel/shares.py",
        old="end_us = now_us if self.until_us is None else min(now_us, self.until_us)",
        new="end_us = now_us",
        tests=PURSES,
    ),
    Named(
        name="policies are shown what a job's own purse cannot keep back",
        file="kernel/allowances.py",
        old="KEPT_BACK = 2 ",
        new="KEPT_BACK = 1 ",
        tests=PURSES,
    ),
    Named(
        name="a plan starts a job whose team has spent its budget",
        file="kernel/kernel.py",
        old=" or self.budgets.pays(state.job)]",
        new=" or True]",
        tests=PURSES,
    ),
    Named(
        name="a job is charged what its own purse does not have",
        file="kernel/allowances.py",
        old="return min(grains, self.allowed[holder].bound)",
        new="return grains",
        tests=LATE,
    ),
    Named(
        name="what a job was not charged is charged with a larger purse",
        file="kernel/allowances.py",
        old="opening=old.opening + free",
        new="opening=old.opening",
        tests=LATE,
    ),
    Named(
        name="a user sees the jobs of others among the budgets",
        file="runtime/controller_api/budgets.py",
        old="return job is not None and job.user == user",
        new="return job is not None",
        tests=("tests/unit/api/test_budgets.py",),
    ),
)

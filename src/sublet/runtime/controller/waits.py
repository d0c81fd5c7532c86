"""Why a job waits, told once and again whenever the reason changes: nobody is queued for ever without a word."""

from __future__ import annotations

from sublet.domain.offer import Market
from sublet.domain.plan import Phase
from sublet.errors import Infeasible, InvalidValue
from sublet.runtime.controller.decisions import Decisions
from sublet.runtime.controller.feasibility import Feasibility
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.table import JobTable

__all__ = ["Waits"]

OTHERS = "what may be held is in use by others, or is kept for them by the policy"
NOBODY = "no other job has anything of what may be held, and the policy gives this one nothing"


class Waits:
    """Looks after every plan at the jobs that it gave nothing; `decisions` has the policy's own reasons."""

    def __init__(self, inbox: Inbox, *, table: JobTable, feasibility: Feasibility, decisions: Decisions) -> None:
        self._inbox, self._table, self._feasibility, self._decisions = inbox, table, feasibility, decisions
        self._told: dict[str, tuple[str, str]] = {}  # job -> (which limit, in words)

    def why(self, job_id: str) -> str:
        """The reason that was told last; "" for a job that does not wait."""
        return self._told.get(job_id, ("", ""))[1]

    def look(self) -> None:
        """After a plan. Jobs that are alike in where and how wide they may run are looked at once."""
        alike: dict[tuple[int, int, tuple[str, ...]], tuple[str, str]] = {}
        for record in self._table.live.values():
            state = self._inbox.kernel.jobs.get(record.id)
            if state is None or state.shape is not None or state.phase is not Phase.WAITING or record.paused:
                self._told.pop(record.id, None)
                continue
            kind = (record.spec.least_workers, record.spec.min_on_demand, record.pools)
            if kind not in alike:
                alike[kind] = self._limit(record)
            limit, text = alike[kind]
            if not limit:
                limit, text = self._say_of_policy(record.id)
            if limit != self._told.get(record.id, ("", ""))[0]:
                self._inbox.note(HistoryRow(kind="Waits", job_id=record.id, text=f"waits: {text}"))
            self._told[record.id] = (limit, text)

    def _say_of_policy(self, job_id: str) -> tuple[str, str]:
        """It alone is in the way of this job: by its plans, none of which is taken, or for a reason of its own."""
        if why := self._decisions.refused:
            return "refused", f"the policy's plans are refused, so nothing is begun: {why}"
        if why := self._decisions.reasons.get(job_id, ""):
            return "policy", why
        others = (state for id_, state in self._inbox.kernel.jobs.items() if id_ != job_id)
        in_use = any(state.shape is not None or state.phase is not Phase.WAITING for state in others)
        return ("policy", OTHERS) if in_use else ("policy, alone", NOBODY)

    def _limit(self, record: JobRecord) -> tuple[str, str]:
        """What is in the way of such a job, money and markets included; ("", "") if nothing is but others."""
        try:
            self._feasibility.refuse_beyond_limits(record.spec)
        except Infeasible as error:
            return error.binding, str(error).replace("\n  next:", "; next:")
        except InvalidValue as error:
            return error.field, str(error)
        supply, left = self._inbox.kernel.supply, self._inbox.kernel.supply.purse.left(self._inbox.now_s())
        if supply.purse.broke:
            return "purse", "all that is left in the purse is reserved to end what runs; next: sublet budget top-up USD"
        pools = [pool for pool in supply.pools.values() if not record.pools or pool.name in record.pools]
        if max(supply.offering.most_gpus(pool) for pool in pools) < record.spec.least_workers:
            names = " and ".join(pool.name for pool in pools)
            return "market", f"the market has too few nodes of {names} now; they are asked for again and again"
        if max(supply.offering.most_of(pool, Market.ON_DEMAND) for pool in pools) < record.spec.min_on_demand:
            names = " and ".join(pool.name for pool in pools)
            return "on demand", f"there are too few nodes of {names} on demand now; they are asked for again and again"
        offers = [supply.offers[offer_id] for pool in pools for offer_id in pool.offer_ids]
        if left is not None and left < min(offer.reserve for offer in offers):
            return "reserve", "what is left in the purse is reserved for the nodes of others"
        return "", ""

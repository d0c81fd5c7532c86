"""From the price of time to a plan: who gets which shape now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from sublet.domain.plan import JobState, Phase, Plan, Snapshot
from sublet.planning.affordable import most_gpus_alone, nodes_to_hold
from sublet.planning.draft import Draft
from sublet.planning.menu import Menu, Sites, menu_of, rents, sharers, sites_of
from sublet.planning.options import Options, options_of
from sublet.planning.ranking import arrival
from sublet.planning.value_of_time import TimePrice
from sublet.planning.weighing import WeighedOptions
from sublet.policies.price.cluster_split import Claim, split
from sublet.policies.price.congestion import WAIT, Fit, Wishes, cheapest, fit, wishes
from sublet.policies.price.deadline import in_time
from sublet.policies.price.exchange import pays, pinned, steady
from sublet.policies.price.own_purse import ever_had, rent_to_the_end, within_purse
from sublet.policies.price.refusals import doubts_of, without_gambles
from sublet.policies.price.worth import HURRY, hour_worth
from sublet.solve.arrays import Floats

__all__ = ["LeastWork", "WorkBelief", "priced_plan"]

BEYOND_USD = 10_000.0  # per hour: no budget speaks against speed, only limits do
OVERTAKERS = 64  # of those that wait, how many beyond what fits to look at: bounds the work of one decision
SELDOM = 10  # times as long until jobs without phases are asked again
NEWCOMER_H = 0.1  # GPU-hours, beside what it has had
TRIFLE_H = 1e-9  # GPU-hours: work that is all but done
MONEY_ALONE = 1e-9  # a value of time at which only rent counts, USD per hour


class WorkBelief(StrEnum):
    """What is believed of the work that a job has left, where GPUs of a cluster are shared out by it."""

    WORK = "work"  # what it declared
    PROGRESS = "progress"  # only what it has had so far: as much again, by a rule of thumb
    NOTHING = "nothing"  # all jobs alike


@dataclass(frozen=True, slots=True)
class LeastWork:
    """Ranks by the GPU-hours that a job still needs at its most efficient, over its weight."""

    sites: Sites

    def __call__(self, state: JobState) -> float:
        """For a job that waits: its work stands still."""
        return self.after(state, state.done)

    def after(self, state: JobState, done: float) -> float:
        """For a job that has come as far as `done`."""
        menu = menu_of(state.job, self.sites)
        gpu_rate = menu.gpu_rate_E[menu.phase(done)]
        return (state.job.work - done) / gpu_rate / state.job.weight if gpu_rate else math.inf


def priced_plan(
    snapshot: Snapshot,
    price_at: Callable[[Sites], TimePrice],
    *,
    review_s: float,
    patience_s: float = math.inf,
    knows: WorkBelief = WorkBelief.WORK,
    hour_usd: float | None = HURRY,
) -> Plan:
    """Each job on the shape that costs least at this price of time; jobs that run are asked every `review_s`.

    Where no budget rules, an hour is worth no more than `hour_usd`; None = as `worth` has it.

    Where a pool is limited everybody is asked, for what one gives up another may use. Jobs that came more than
    `patience_s` ago come first then, in order of arrival.
    """
    return _Pricing(snapshot, price_at, review_s, patience_s, knows, hour_usd).plan()


class _Pricing:
    """One decision in the making."""

    def __init__(
        self,
        snapshot: Snapshot,
        price_at: Callable[[Sites], TimePrice],
        review_s: float,
        patience_s: float,
        knows: WorkBelief,
        hour_usd: float | None,
    ) -> None:
        self.snapshot, self.now_s, self.review_s, self.patience_s = snapshot, snapshot.now_s, review_s, patience_s
        self.knows = knows
        self.draft = Draft(snapshot)
        self.sites = sites_of(snapshot)
        self.price = price_at(self.sites)
        self.worth = hour_worth(snapshot, hour_usd)
        self.rent = (rents(snapshot), sharers(snapshot))
        self.rank = LeastWork(self.sites)
        alone = most_gpus_alone(snapshot)
        self.most_P = np.array([alone[site.pool] for site in self.sites])
        self.ever_P = ever_had(snapshot)
        self.doubts = doubts_of(snapshot, self.sites)
        self.limited = bool(np.isfinite(self.most_P).any())
        self.warnings: dict[str, str] = {}
        self.surcharge: dict[str, float] = {}
        self.scarce: dict[str, Floats] = {}  # what that comes to for each shape of a job

    def plan(self) -> Plan:
        asked = [(state, options) for state in self._asked() if (options := self._options(state)).any]
        if asked and self.limited:
            if not any(self.rent[0]) or (self._priceless and len(self.sites) == 1):
                self._split(asked)
            else:
                self._share(asked)
        else:
            for state, options in asked:
                self._give(state, options, options.best)
        return self.draft.plan(
            ask_again_s=self._next_review_s(),
            value_of_time_usd_per_h=self.price.usd_per_h if self.worth is None else None,  # else each job has its own
            congestion_usd_per_gpu_h=self.surcharge,
            warnings=self.warnings,
            weighed={state.job.id: self._weighed(state, options) for state, options in asked},
        )

    def _weighed(self, state: JobState, options: Options) -> WeighedOptions:
        rent_P, sharers_P = self.rent
        scarce_C = self.scarce.get(state.job.id)
        return WeighedOptions(
            options=options, rent_P=rent_P, sharers_P=sharers_P, most_P=self.most_P, scarce_C=scarce_C
        )

    @property
    def _priceless(self) -> bool:
        """No money is to be saved by taking longer."""
        return self.price.priceless and self.worth is None

    def _next_review_s(self) -> float | None:
        """Jobs with phases may want another shape soon; the others only as the price of time creeps."""
        if not self.snapshot.active and not len(self.snapshot.waiting):
            return None
        phased = any(state.job.speed.ends for state in self.snapshot.active.values())
        every_s = self.review_s if phased else SELDOM * self.review_s
        return (math.floor(self.now_s / every_s) + 1) * every_s

    # ------------------------------------------------------------------ who is asked

    def _asked(self) -> Iterator[JobState]:
        """Those with a shape, if it is time or GPUs are short; then those that wait, as many as could have one."""
        if self.limited or self.snapshot.woken:
            yield from self.snapshot.active.values()
        snapshot = self.snapshot
        waiting = self._in_line()
        if snapshot.left is not None:
            waiting = self._affordable(waiting, snapshot.left.usd)
        yield from _next_in_line(waiting, float(self.most_P.sum()))

    def _in_line(self) -> Iterator[JobState]:
        """Those that wait: first who came too long ago, in order of arrival, then the least work first."""
        waiting = self.snapshot.waiting
        due = set()
        for state in waiting.by(arrival) if self.patience_s < math.inf else ():
            if self.now_s - state.job.submit_s <= self.patience_s:
                break
            due.add(state.job.id)
            yield state
        yield from (
            state for state in waiting.by(self.rank) if state.job.id not in due and not self._just_stopped(state)
        )

    def _just_stopped(self, state: JobState) -> bool:
        """Whether it gave its GPUs up at this very instant: to start it again at once would go round in circles."""
        return self.limited and state.generation > 0 and state.held_since_s >= self.now_s

    def _affordable(self, waiting: Iterator[JobState], left_usd: float) -> Iterator[JobState]:
        """As many as the purse sees to their end at the least cost, and one more, which can go on with the next."""
        left_usd -= sum(map(self._least_usd, self.snapshot.active.values()))
        for state in waiting:
            if left_usd < 0.0:
                break
            left_usd -= self._least_usd(state)
            yield state

    def _least_usd(self, state: JobState) -> float:
        cost_C = options_of(menu_of(state.job, self.sites), state, self.now_s, MONEY_ALONE, *self.rent).cost_C
        return float(cost_C.min(initial=math.inf))

    def _options(self, state: JobState) -> Options:
        return without_gambles(self._options_it_can_pay(state), state, self.doubts)

    def _options_it_can_pay(self, state: JobState) -> Options:
        menu = menu_of(state.job, self.sites)
        options = self._options_in_time(state, menu)
        left_usd = state.job.purse_left_usd
        if left_usd is None or not options.any:
            return options
        held = self._held(state, options)
        affordable = within_purse(options, left_usd, *self.rent, self.ever_P, held)
        had_C = affordable.menu.gpus_C <= self.most_P[affordable.menu.site_C]
        if not np.isfinite(affordable.cost_C[had_C]).any():
            self.warnings[state.job.id] = f"USD {left_usd:.2f} of its own budget pay for nothing that can be had now"
        return affordable

    def _options_in_time(self, state: JobState, menu: Menu) -> Options:
        value = self._value(state, menu)

        def options_at(value_of_time: float) -> Options:
            return options_of(menu, state, self.now_s, value_of_time, *self.rent, boots=self.worth is not None)

        if state.job.deadline_s is None or not len(menu.shapes):
            return options_at(value)
        options, warning = in_time(options_at, value, (state.job.deadline_s - self.now_s) / 3600)
        if warning:
            self.warnings[state.job.id] = warning
        return options

    def _value(self, state: JobState, menu: Menu) -> float:
        """What an hour of this job is worth, its weight included: as the budget has it, or as its owner would."""
        value = self.price.of(state)
        if self.worth is not None and not state.job.hurry:
            value = min(value, state.job.weight * self.worth(menu))
        return value

    # ------------------------------------------------------------------ who gets what

    def _share(self, asked: list[tuple[JobState, Options]]) -> None:
        """Everybody at once, within what can be held."""
        work_J = np.array([max(TRIFLE_H, self.rank.after(state, state.done_at(self.now_s))) for state, _ in asked])
        every = wishes([options for _, options in asked], work_J, self.most_P)
        able = set(every.row_J.tolist())
        for at, (state, _) in enumerate(asked):
            if at not in able:
                self.draft.take(state, "nothing that it can run on can be had now")
        asked = [asked[at] for at in every.row_J.tolist()]
        if not asked:
            return
        wanted_P = every.gpus(every.columns(np.zeros(len(self.sites))), len(self.sites))
        ranks_J = self._ranks(asked, work_J[every.row_J])
        split_by = fit if self.worth is None or len(self.sites) == 1 else cheapest
        found = split_by(every, ranks_J, self._obtainable(wanted_P))
        if self.worth is not None or any(options.menu.doubt_C is not None for _, options in asked):
            found = self._unless_steady(asked, every, ranks_J, found)
        for (state, options), column in zip(asked, found.column_J.tolist(), strict=True):
            if column == WAIT:
                self.draft.take(state, "there are not enough GPUs for all, and it has the most work left")
            else:
                self._give(state, options, column)
        self.surcharge = {s.pool: float(nu) for s, nu in zip(self.sites, found.surcharge_P, strict=True) if nu > 0}
        for row, (state, options) in enumerate(asked if self.surcharge else ()):
            scarce_C = found.surcharge_P[every.site_JC[row]] * every.use_JC[row]
            self.scarce[state.job.id] = scarce_C[: len(options.cost_C)]  # the rest is padding

    def _unless_steady(self, asked: list[tuple[JobState, Options]], every: Wishes, ranks_J: Floats, found: Fit) -> Fit:
        """The same, or else all that run where they are, if it is not worth to them all what it costs to move some."""
        held_J = np.array([self._held(state, options) for state, options in asked])
        pools = len(self.sites)
        free_J = every.columns(np.zeros(pools))
        wanted_P = np.maximum(every.gpus(np.where(held_J == WAIT, free_J, held_J), pools), every.gpus(free_J, pools))
        most_P = self._obtainable(wanted_P)
        old_J = steady(every, held_J, ranks_J, most_P)
        if (old_J == WAIT).sum() > (found.column_J == WAIT).sum():
            old_J = pinned(every, held_J, ranks_J, most_P)
        if pays([options for _, options in asked], held_J, found.column_J, old_J):
            return found
        return replace(found, column_J=old_J)

    def _held(self, state: JobState, options: Options) -> int:
        if state.shape is None or state.phase is Phase.BROKEN:
            return WAIT
        here = state.runs_in if state.phase is Phase.RUNNING else None  # not what it was promised and may never get
        return options.menu.column.get(here or state.shape, WAIT)

    def _split(self, asked: list[tuple[JobState, Options]]) -> None:
        """The same where nothing is saved, or is to be saved, by leaving a GPU idle."""
        claims = [self._claim(state, options) for state, options in asked]
        found = split(claims, self.most_P)
        for (state, options), column in zip(asked, found.column_J.tolist(), strict=True):
            if column == WAIT:
                self.draft.take(state, "others make more of the GPUs, or have less left to do")
            else:
                self._give(state, options, column)
        self.surcharge = {s.pool: float(nu) for s, nu in zip(self.sites, found.price_P, strict=True) if nu > 0}

    def _claim(self, state: JobState, options: Options) -> Claim:
        done = state.done_at(self.now_s)
        held = WAIT if state.shape is None else options.menu.column.get(state.shape, WAIT)
        return Claim(
            options=options,
            done=done,
            work=state.job.work,
            left_h=max(TRIFLE_H, self._left_h(state, done)),
            sure=self.knows is WorkBelief.WORK,
            due_s=max(0.0, self.now_s - state.job.submit_s - self.patience_s),
            held=held,
            pinned=state.shape is not None and (state.held_since_s >= self.now_s or state.as_of_s > self.now_s),
        )

    def _left_h(self, state: JobState, done: float) -> float:
        """GPU-hours that a job still needs, over its weight: as declared, or else as much again as it has had."""
        if self.knows is WorkBelief.WORK:
            return self.rank.after(state, done)
        if self.knows is WorkBelief.PROGRESS:
            return (state.attained_gpu_s(self.now_s) / 3600 + NEWCOMER_H) / state.job.weight
        return 1.0 / state.job.weight

    def _ranks(self, asked: list[tuple[JobState, Options]], work_J: Floats) -> Floats:
        """Who comes first when not all can run: the least work; but before all, those that have waited for too long."""
        age_J = self.now_s - np.array([state.job.submit_s for state, _ in asked])
        return np.where(age_J > self.patience_s, -age_J, work_J)

    def _obtainable(self, wanted_P: Floats) -> Floats:
        """GPUs of each pool that can be held together, if this many are wanted: money goes to one or to another."""
        snapshot = self.snapshot
        if snapshot.budget.burn is None and snapshot.left is None and snapshot.most_nodes is None:
            return self.most_P
        wanted = {site.pool: math.ceil(gpus) for site, gpus in zip(self.sites, wanted_P, strict=True)}
        have = self._gpus_held(wanted)
        short = sum(max(0, wanted[pool] - have[pool]) for pool in wanted)
        if short and len(wanted) > 1:  # what one pool has not got another may have
            more = {pool: have[pool] if have[pool] < gpus else gpus + short for pool, gpus in wanted.items()}
            have = self._gpus_held(more)
        return np.array([have[site.pool] for site in self.sites], dtype=np.float64)

    def _gpus_held(self, wanted: Mapping[str, int]) -> dict[str, int]:
        nodes, pools = nodes_to_hold(self.snapshot, wanted), self.snapshot.pools
        return {
            name: sum(nodes[offer_id] for offer_id in pools[name].offer_ids) * pools[name].gpus_per_node
            for name in wanted
        }

    def _give(self, state: JobState, options: Options, column: int) -> None:
        shape = options.menu.shapes[column]
        if shape == state.shape:
            return
        hours = float(options.hours_C[column])
        money = float(rent_to_the_end(options, *self.rent)[column])
        usd_per_h = options.value_of_time
        best = "the quickest within the limits" if usd_per_h > BEYOND_USD else "time and rent together are least"
        self.draft.give(state, shape.pool, shape.gpus, f"{hours:.2f} h for about USD {max(0.0, money):.2f}: {best}")


def _next_in_line(waiting: Iterator[JobState], room: float) -> Iterator[JobState]:
    overtakers = 0
    for state in waiting:
        if room <= 0:
            overtakers += 1
            if overtakers > OVERTAKERS:
                break
        room -= state.job.min_gpus
        yield state

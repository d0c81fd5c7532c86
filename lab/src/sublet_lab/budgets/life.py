"""One life: a random tree of budgets, jobs of its users, and a world that answers late, loses nodes and moves prices.

Every event is followed by a check of all laws of the kernel and of the twin's. In a third of the lives timers ring when
they were set for. In another they are late, as those of a live controller are. In the last there is no controller from
time to time, for up to an hour, and it hears of everything afterwards. Jobs that are told to stop may take as long as
they like; prices may jump above what was ever to be paid. A released node is gone in time, or when the controller is
back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from sublet import plugins
from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.budget import ORG, Budget, Holder, Level, Limit, Period
from sublet.domain.job import Job
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Plan, Policy
from sublet.domain.timers import Timer, timer_to_text
from sublet.errors import InvariantBroken
from sublet.kernel.cluster import NodePhase
from sublet.kernel.journal import replay
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.perf.speedup import Linear
from sublet.testing.driver import Driver
from sublet_lab.budgets.twin import Twin

POLICIES = ("fifo", "equal", "las", "srtf", "price", "greedy-keep", "max-speedup")
TURNS = 200  # of the world, in one life
SOON_S, LONG_S = 300.0, 40_000.0
OVERDUE = 0.2  # of the lives, in which jobs may stay on when they were told to go
ANSWERS = 0.8  # of the turns, where there is something to answer
WEIGHTS = (3, 3, 1, 1, 2, 2)  # of what else may happen: jobs, prices, losses, ends, budgets, plans
MOST_JOBS = 8  # at once
LATE_S = (0.0, 0.0, 0.02, 2.0, 60.0, 0.0)  # by which timers ring late at the most, by life
AWAY, AWAY_S = 0.05, 3600.0  # of the turns, in which there is no controller; and for how long at the most
BUDGETED = 0.4  # of the jobs: they come with a budget of their own


@dataclass(slots=True)
class Course:
    """The course of one life."""

    seed: int
    events: Counter[str] = field(default_factory=Counter)
    budgeted: int = 0  # jobs that came with a budget
    turned_out: int = 0  # jobs, because a budget below that of all was spent
    periods: int = 0
    late: int = 0  # looks after the instant at which a budget was spent
    over_usd: float = 0.0  # by which budgets may have been exceeded until all had left, at the most
    broken: str = ""


class _Life:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)  # noqa: S311 - a seed's life, not a secret
        self.course = Course(seed)
        self.offers = [self._offer(at) for at in range(rng.randint(1, 3))]
        limits = {offer.id: Limit(max_nodes=rng.choice([2, 4, 8])) for offer in self.offers}
        purse = Money.from_usd(rng.randint(5, 200)) if rng.random() < 0.4 else None
        self.driver = Driver(self.offers, limits=limits, budget=Budget(purse=purse))
        self.unix_s = rng.randint(0, 2_000_000_000) if rng.random() < 0.5 else 1_798_761_600 - rng.randint(0, 90_000)
        self.twin = Twin(self.driver.kernel, self.unix_s)
        kind = plugins.load("sublet.policies", rng.choice(POLICIES))
        self.policy: Policy = kind()  # type: ignore[operator]  # a policy without knobs
        self.teams = [f"t{at}" for at in range(rng.randint(1, 3))]
        self.users = {f"u{at}": rng.choice([*self.teams, ""]) for at in range(rng.randint(1, 5))}
        self.overdue = rng.random() < OVERDUE
        self.lags = Random(f"late {seed}")  # noqa: S311 - apart from the others, so that lives stay as they were
        self.late_s, self.goes_away = LATE_S[seed % len(LATE_S)], seed % len(LATE_S) == len(LATE_S) - 1
        self.rings: dict[tuple[Timer, float], float] = {}  # when a timer does that was set for an instant
        self.jobs, self.thought = 0, list[tuple[Plan, int]]()
        self.due: dict[Action, float] = {}  # by when the world must have answered

    def _offer(self, at: int) -> Offer:
        rng = self.rng
        price = Price(rng.randint(1, 40) * 100_003)
        size = rng.choice([1, 2, 3, 4, 8])
        return Offer(
            id=f"o{at}",
            gpu="T4",
            gpus_per_node=size,
            market=rng.choice(list(Market)),
            price=price,
            pool=f"p{at}",
            minimum_billing_s=rng.choice([0.0, 60.0]),
            billed_by_s=rng.choice([0.0, 0.0, 3600.0]),
            cap=Price(price.micro_usd_per_h * rng.choice([1, 2, 5])),
            wind_down_s=rng.choice([0.0, 7.3, 60.0, 600.0]),
        )

    # ------------------------------------------------------------------ what happens

    def tell(self, event: news.Event) -> None:
        """To the kernel, and to the twin."""
        driver = self.driver
        self.twin.before(event)
        before = {holder: each.ends for holder, each in driver.kernel.budgets.allowed.items()}
        orders = driver.tell(event)
        self.course.late += self.twin.late_us > 0
        self.twin.after(event, orders)
        after = driver.kernel.budgets.allowed
        self.course.events[type(event).__name__] += 1
        self.course.periods += sum(h in before and before[h] not in (None, each.ends) for h, each in after.items())
        self.course.turned_out += sum("has spent its" in o.text for o in orders if isinstance(o, order.TellUser))
        for each in orders:
            if isinstance(each, order.ReleaseNode):
                self.due[each] = event.at_s + driver.kernel.cluster.nodes[each.node_id].offer.wind_down_s
            elif isinstance(each, order.StopJob) and each.resumable and not self.overdue:
                held = driver.kernel.tenancy.placement.get(each.job_id, ())
                winds = [driver.kernel.cluster.nodes[node_id].offer.wind_down_s for node_id, _ in held]
                self.due[each] = event.at_s + min(winds, default=0.0)

    def live(self) -> Course:
        """To its end, or to the first law that breaks."""
        try:
            self.tell(news.BudgetChanged(0.0, self.driver.kernel.supply.budget))
            for _ in range(self.rng.randint(2, 6)):
                self._set_a_budget(0.0)
            for _ in range(TURNS):
                self._turn()
            self._again()
        except InvariantBroken as error:
            self.course.broken = f"{error.law}: {error.found}"
        self.course.over_usd = Money(int(self.twin.over)).usd
        return self.course

    def _again(self) -> None:
        """The same events give the same orders, and a kernel at rest is the same kernel."""
        kernel, other = self.driver.kernel, replay(self.driver.journal)
        facts = kernel.facts()
        for again in (other, kernel_from_snapshot(facts)):
            if again.facts()["tenancy"]["purses"] != facts["tenancy"]["purses"]:
                raise InvariantBroken("a life lived again is the same", "the budgets are others")

    def _turn(self) -> None:
        rng, driver = self.rng, self.driver
        if self.goes_away and self.lags.random() < AWAY:
            driver.now_s += AWAY_S * self.lags.random()
        until_s = driver.now_s + rng.choice([0.0, 1.0, SOON_S, LONG_S]) * rng.random()
        due = {each: at_s for each, at_s in self.due.items() if each in driver.open}
        self.due = due
        timer = min(driver.timers, key=lambda each: (self._rings_s(each), timer_to_text(each)), default=None)
        timer_s = until_s + 1.0 if timer is None else max(self._rings_s(timer), driver.now_s)
        late = min(due, key=lambda each: due[each], default=None)
        late_s = until_s + 1.0 if late is None else max(due[late], driver.now_s)
        if timer is not None and timer_s <= min(until_s, late_s):
            del driver.timers[timer]
            self.tell(news.TimerFired(timer_s, timer))
        elif late is not None and late_s <= until_s:
            self._answer(late, late_s)
        else:
            self._happen(until_s)

    def _rings_s(self, timer: Timer) -> float:
        set_s = self.driver.timers[timer]
        return self.rings.setdefault((timer, set_s), set_s + self.late_s * self.lags.random())

    def _happen(self, at_s: float) -> None:
        rng, driver = self.rng, self.driver
        driver.now_s = at_s
        if driver.open and rng.random() < ANSWERS:
            self._answer(rng.choice(driver.open), at_s)
            return
        kinds = (self._submit, self._reprice, self._take_a_node, self._end_a_job, self._set_a_budget, self._plan_late)
        rng.choices(kinds, WEIGHTS)[0](at_s)

    def _reprice(self, at_s: float) -> None:
        """Seldom above what was ever to be paid: the cloud would take the nodes."""
        offer = self.rng.choice(self.offers)
        most = (offer.cap or offer.price).micro_usd_per_h * self.rng.choice([1, 1, 1, 2])
        self.tell(news.PriceChanged(at_s, offer.id, Price(self.rng.randint(most // 4, most))))

    def _take_a_node(self, at_s: float) -> None:
        nodes = [node for node in self.driver.kernel.cluster.nodes.values() if node.phase is not NodePhase.REQUESTED]
        if not nodes:
            return
        node = self.rng.choice(nodes)
        if node.phase is NodePhase.READY and self.rng.choice([True, False]):
            self.tell(news.NodeNoticed(at_s, node.id, at_s + 120.0))
        else:
            self.tell(news.NodeLost(at_s, node.id))

    def _end_a_job(self, at_s: float) -> None:
        if jobs := list(self.driver.kernel.jobs):
            job_id = self.rng.choice(jobs)
            kind = news.JobFinished if job_id in self.driver.kernel.tenancy.placement else news.JobCancelled
            self.tell(kind(at_s, job_id))

    def _plan_late(self, at_s: float) -> None:
        """A planner that thought for a while: much has happened since."""
        if self.thought:
            self.tell(news.PlanMade(at_s, *self.thought.pop()))

    def _answer(self, each: Action, at_s: float) -> None:
        driver, kernel = self.driver, self.driver.kernel
        driver.now_s = at_s
        driver.open.remove(each)
        match each:
            case order.RentNode(node_id=node_id):
                refused = self.rng.random() < 0.1
                self.tell(news.RentRefused(at_s, node_id) if refused else news.NodeReady(at_s, node_id))
            case order.ReleaseNode(node_id=node_id):
                self.tell(news.NodeReleased(at_s, node_id))
            case order.StartJob(job_id=job_id, generation=generation):
                if job_id in kernel.jobs:
                    self.tell(news.JobStarted(at_s, job_id, generation, driver.done(job_id), at_s))
            case order.ResizeJob(job_id=job_id, generation=generation):
                if job_id in kernel.jobs:
                    self.tell(news.JobResized(at_s, job_id, generation, driver.done(job_id), at_s))
            case order.StopJob(job_id=job_id, generation=generation):
                if job_id in kernel.jobs:
                    self.tell(news.JobStopped(at_s, job_id, generation, driver.done(job_id)))
            case order.MakePlan():
                kernel.now_s, before_s = at_s, kernel.now_s
                thought = self.policy.decide(kernel.snapshot(frozen=True)), kernel.seen
                kernel.now_s = before_s
                if self.rng.random() < 0.2:
                    self.thought.append(thought)
                else:
                    self.tell(news.PlanMade(at_s, *thought))
            case _:
                raise AssertionError(f"no answer to {each}")

    def _submit(self, at_s: float) -> None:
        rng = self.rng
        if len(self.driver.kernel.jobs) >= MOST_JOBS:
            return
        self.jobs += 1
        user = rng.choice([*self.users, ""])
        gpus, rigid = rng.randint(1, 6), rng.random() < 0.3
        job = Job(
            id=f"j{self.jobs}",
            submit_s=at_s,
            work=1e9,
            speed=Linear(),
            gpus=gpus,
            min_gpus=gpus if rigid else 1,
            max_gpus=gpus if rigid else gpus + rng.randint(0, 6),
            user=user,
            team=self.users.get(user, rng.choice(self.teams)),
        )
        self.tell(news.JobSubmitted(at_s, job))
        if rng.random() < BUDGETED:  # as its file says: in all, from before it has anything
            self.course.budgeted += 1
            amount = Money.from_usd(round(10.0 ** rng.uniform(-2.5, 2.0), 4))
            level = self.lags.choice([Level.JOB, Level.FILE])
            self.tell(news.PurseSet(at_s, Holder(level, job.id), amount, None, self.unix_s + at_s))

    def _set_a_budget(self, now_s: float) -> None:
        rng = self.rng
        own = [Holder(Level.JOB, job_id) for job_id in self.driver.kernel.jobs]
        teams, users = ([Holder(Level.TEAM, t) for t in self.teams], [Holder(Level.USER, u) for u in self.users])
        holder = rng.choice([*teams, *users, *own[:3], ORG] if rng.random() < 0.9 else teams)
        amount = Money.from_usd(round(10.0 ** rng.uniform(-1.5, 2.5), 4))
        period = rng.choice([None, *Period])
        gone = rng.random() < 0.1
        unix_s = self.unix_s + now_s
        self.tell(news.PurseSet(now_s, holder, None if gone else amount, None if gone else period, unix_s))


def live(seed: int) -> Course:
    """The life of this seed."""
    return _Life(seed).live()

"""The content of one seed: jobs, a cloud, a budget, knobs, and the faults to come. A value, so it can be shrunk.

Each drawn thing has an RNG of its own, every kind of fault among them: a new kind, or a new knob, leaves all seeds as
they were but for itself. So a kind is added by its name here and by its function under `kinds`, at any place.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sublet.runtime.controller.host import PACES, Paces

PLAIN = (
    "crash_commit",
    "kill_controller",
    "stop_controller",
    "second_controller",
    "restart_machine",
    "notice",
    "take_told",
    "take_untold",
    "kill_worker",
    "hang_worker",
    "part_node",
    "part_peers",
    "cut_off",
    "slow_net",
    "reset_line",
    "rent_lie",
    "release_lie",
    "list_lie",
    "sold_out",
    "reprice",
    "user_pause",
    "user_cancel",
    "user_scale",
    "user_top_up",
    "user_top_up_job",
    "wild_report",
    "kill_agent",
    "stop_agent",
    "end_agent",
    "no_forks",
    "babble",
    "flood",
    "odd_orders",
    "no_storage",
    "node_clock",
    "told_inside",
    "short_of_memory",
    "lost_power",
    "rot",
    "older_backup",
    "damaged_snapshot",
    "foreign_job",
    "slow_node",
    "too_wide",
    "user_asks",
    "user_bids",
    "policy_nonsense",
    "foreign_store",
    "older_schema",
    "damaged_store",
)
# Where a store keeps next to nothing, beside those.
KEPT = ("full_archive", "crash_archive", "rotten_archive", "lost_log", "replay", "user_returns")
KNOWN = ("policy", "policy_hangs", "clock", "forge", "hole", "flags", "full_disk")  # each was a bug once
OF_CLOUD: dict[str, tuple[str, ...]] = {  # beside those, where a life is led there
    "aws": (
        "throttle",
        "credentials",
        "not_ended",
        "refused_end",
        "crash_call",
        "price_garbage",
        "full_folder",
        "damaged_record",
        "ec2_code",
    ),
    "local": ("full_folder", "damaged_record"),
}
POLICIES = ("max-speedup", "max-speedup", "price", "price", "boa", "equal", "srtf", "fifo", "greedy-keep", "las")
CLOUDS = ("plain", "aws", "local", "plain", "ray", "aws", "plain", "local")  # by the number of the seed
ON_NODE_LOSS = ("continue",) * 5 + ("replace", "replace", "restart", "fail")
SHORT = 0.3  # of the seeds: their store keeps next to nothing, the rest is in the archive and on the shelf
OFTEN_KEPT = 6  # what befalls an archive comes so much more often, in the few lives that have one
SPAN_S = 300.0
EARLIEST_S = 20.0
FEWEST, MOST = 3, 12  # faults of a life, in the mean
MANY_KINDS = 44  # with so many, or fewer, a life has as many faults as said; with every kind more, a few more
PURSE, TIGHT = 0.5, 0.7  # of the seeds have a budget; of those, one that does not last
CAPS = (2.0, 2.0, 5.0)  # of what is never paid more than: the nearer it is, the more of a budget is spent
LEAST_USD = 0.0139  # for a node and a cap of its price: with less nothing is rented at all
LEASES_S = (30.0, 30.0, 30.0, 90.0)  # the last is long enough for others to go on before it ends
TRAVELS = 0.3  # of the seeds: machines share nothing with the controller
JOB_PURSE = 0.3  # of the jobs have one of their own
CHOICE, MIXED = 0.6, 0.7  # of the seeds with `price` may have an average; of those, both markets in one pool
AVERAGES_USD_PER_H = (None, 0.3, 1.0, 2.0)
RELEASES_S, QUICK_S = (0.0, 0.0, 30.0, 90.0), 20.0  # beside a quick one, of a plain cloud
CUT = 0.7  # of the jobs with a session, in stories with grids
FEWEST_STAGES, MOST_STAGES = 2, 3
PLANS_GRIDS = ("max-speedup", "price")  # policies that do, and serve several jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault happens at `at_s` (of the world's age); the RNG decides on its target and form, and nothing else."""

    at_s: float
    kind: str
    rng: int

    def random(self) -> random.Random:
        """Its own."""
        return random.Random(f"{self.kind}/{self.at_s}/{self.rng}")  # noqa: S311 - no secret


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job, and when its owner brings it."""

    name: str
    at_s: float
    max_workers: int
    steps: int
    step_s: float
    boot_s: float
    write_s: float
    hang_s: float = 120.0
    sdk: bool = True
    fails: int = 0  # starts that end with an error of its own
    purse_usd: float | None = None
    on_node_loss: str = "continue"
    checkpoint_every_s: float | None = None  # None = as the controller thinks best
    stages: int = 1  # parts of its model; more than one: its workers are a grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All that is drawn before anything happens."""

    seed: int
    jobs: tuple[JobPlan, ...]
    faults: tuple[Fault, ...]
    gpus_per_node: int = 1
    most_nodes: int = 3  # of each offer
    purse_usd: float | None = None
    keeps_records: bool = True  # the provider tells what it charges
    cloud: str = "plain"
    policy: str = "max-speedup"
    think_s: float = 0.02  # mean, of the policy
    paces: Paces = PACES
    lease_s: float = 30.0
    span_s: float = SPAN_S
    http: bool = False  # users come through the HTTP border
    cap: float = 5.0  # times the price at first: what is never paid more than, and kept back in a budget
    told_inside: bool = False  # machines learn from a service of their own that they will be taken
    travels: bool = False  # machines do not see the controller's disk: the files of jobs travel, and their output
    average_usd_per_h: float | None = None  # to spend in the long run
    mixed: bool = False  # both markets are one pool
    release_s: float = 0.0  # that a node is paid for after it is given back


def draw_story(
    seed: int, kinds: Sequence[str] = (), *, cloud: str = "", policy: str = "", grids: bool = False
) -> Story:
    """The story of a seed, with faults of these kinds alone; () = of all that can go wrong at its cloud.

    With `grids` most of its jobs with a session have a model that is cut.
    """
    rng, cloud = _rng(seed, "story"), cloud or CLOUDS[seed % len(CLOUDS)]
    paces = draw_paces(seed)
    more = () if kinds or paces.events_a_file == PACES.events_a_file else KEPT * OFTEN_KEPT
    story = Story(
        seed=seed,
        jobs=tuple(_draw_job(seed, number) for number in range(rng.randint(1, 3))),
        faults=draw_faults(seed, (*kinds_at(cloud, kinds), *more)),
        gpus_per_node=rng.choice([1, 1, 2]),
        most_nodes=rng.randint(1, 4),
        purse_usd=_draw_budget(seed),
        keeps_records=rng.random() < 0.5,
        cloud=cloud,
        policy=policy or rng.choice(POLICIES),
        think_s=rng.choice([0.02, 0.02, 0.5, 3.0]),
        paces=paces,
        lease_s=_rng(seed, "lease").choice(LEASES_S),
        http=_rng(seed, "http").random() < 0.15,
        cap=_rng(seed, "cap").choice(CAPS),
        told_inside=_rng(seed, "inside").random() < 0.3,
        travels=_rng(seed, "travels").random() < TRAVELS,
    )
    return _with_grids(story) if grids else _with_choice(story)


def kinds_at(cloud: str, kinds: Sequence[str] = ()) -> tuple[str, ...]:
    """Those of them that can happen there; () = all."""
    there = OF_CLOUD.get(cloud, ())
    elsewhere = {kind for others in OF_CLOUD.values() for kind in others}.difference(there)
    return tuple(kind for kind in kinds or (*PLAIN, *KNOWN, *there) if kind not in elsewhere)


def draw_faults(seed: int, kinds: Sequence[str], span_s: float = SPAN_S) -> tuple[Fault, ...]:
    """In order of time; a kind that is named twice comes twice as often."""
    rate = _rng(seed, "faults").uniform(FEWEST, MOST) / max(1, min(len(kinds), MANY_KINDS)) / (span_s - EARLIEST_S)
    found = [fault for kind, times in Counter(kinds).items() for fault in _draw_kind(seed, kind, rate * times, span_s)]
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _draw_kind(seed: int, kind: str, rate_per_s: float, span_s: float) -> Iterator[Fault]:
    rng, at_s = _rng(seed, f"fault {kind}"), EARLIEST_S
    while (at_s := at_s + rng.expovariate(rate_per_s)) < span_s:
        yield Fault(at_s=round(at_s, 3), kind=kind, rng=rng.randrange(1 << 30))


def _draw_budget(seed: int) -> float | None:
    """The budget of the run: none, one that is spent before its jobs have ended, or one that lasts."""
    rng = _rng(seed, "purse")
    if rng.random() >= PURSE:
        return None
    least_usd = LEAST_USD * _rng(seed, "cap").choice(CAPS)
    return round(least_usd * rng.uniform(0.98, 3.0) if rng.random() < TIGHT else rng.uniform(0.08, 0.4), 4)


def draw_paces(seed: int) -> Paces:
    """Other ones than ours find what ours hide; and seldom ticks make quick seeds."""
    rng = _rng(seed, "paces")
    paces = Paces(
        tick_s=rng.choice([0.25, 1.0, 1.0, 1.0]),
        save_s=rng.choice([2.0, 5.0]),
        sweep_s=rng.choice([5.0, 15.0]),
        absences=rng.choice([2, 3]),
        agent_comes_s=rng.choice([45.0, 60.0]),
        agents_come_back_s=rng.choice([3.0, 6.0]),
        rent_tries=rng.choice([3, 5]),
        events_a_snapshot=rng.choice([20, 200]),
        silence_s=_rng(seed, "silence").choice([20.0, 25.0, 40.0]),
    )
    if rng.random() >= SHORT:
        return paces
    return replace(
        paces,
        events_a_snapshot=rng.choice([5, 20]),
        events_a_file=rng.choice([10, 40]),
        history_kept=rng.choice([10, 60]),
        jobs_kept=rng.choice([0, 1]),
        jobs_shelved=1,
    )


def _draw_job(seed: int, number: int) -> JobPlan:
    rng, purse = _rng(seed, f"job {number}"), _rng(seed, f"purse of job {number}")
    sdk = rng.random() < 0.75
    return JobPlan(
        name=f"job{number}",
        at_s=round(rng.uniform(1.0, 90.0), 3),
        max_workers=rng.randint(1, 3),
        steps=rng.randint(60, 600),
        step_s=rng.choice([0.2, 0.5, 1.0]),
        boot_s=round(rng.uniform(0.5, 4.0), 3),
        write_s=round(rng.uniform(0.1, 3.0), 3),
        hang_s=rng.choice([60.0, 120.0, 300.0]),
        sdk=sdk,
        fails=rng.choice([0, 0, 0, 0, 0, 1, 3]),
        purse_usd=round(purse.uniform(0.006, 0.08), 4) if purse.random() < JOB_PURSE else None,
        on_node_loss=rng.choice(ON_NODE_LOSS),
        checkpoint_every_s=rng.choice([None, 8.0, 25.0]) if sdk else None,
    )


def _with_grids(story: Story) -> Story:
    """A policy that plans grids, and room and money for one copy of what is cut at least."""
    rng = _rng(story.seed, "grids")
    most_nodes = max(story.most_nodes, FEWEST_STAGES)
    room = min(story.gpus_per_node * most_nodes, MOST_STAGES)
    policy = story.policy if story.policy in PLANS_GRIDS else rng.choice(PLANS_GRIDS)
    jobs = tuple(_cut(plan, story.seed, room) for plan in story.jobs)
    return replace(story, jobs=jobs, most_nodes=most_nodes, policy=policy, purse_usd=None)


def _with_choice(story: Story) -> Story:
    """A story with a choice of markets, by what may be spent in the long run: all that `price` weighs."""
    rng = _rng(story.seed, "choice")
    if story.policy != "price" or rng.random() >= CHOICE:
        return story
    story = replace(story, average_usd_per_h=rng.choice(AVERAGES_USD_PER_H), mixed=rng.random() < MIXED)
    if story.cloud != "plain":
        return story
    release_s = rng.choice(RELEASES_S)
    usd = None if story.purse_usd is None else round(story.purse_usd * (1.0 + release_s / QUICK_S), 4)
    return replace(story, release_s=release_s, purse_usd=usd)  # what is kept back for each node grows alike


def _cut(plan: JobPlan, seed: int, room: int) -> JobPlan:
    rng = _rng(seed, f"stages of {plan.name}")
    if not plan.sdk or rng.random() >= CUT:
        return plan
    stages = rng.randint(FEWEST_STAGES, room)
    return replace(plan, stages=stages, max_workers=rng.randint(stages, 2 * MOST_STAGES), purse_usd=None)


def _rng(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}/{name}")  # noqa: S311 - no secret

"""What one seed is about: jobs, a cloud, a purse, knobs, and the faults to come. A value, so it can be shrunk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sublet.runtime.controller.paces import PACES, Paces

__all__ = ["KNOWN", "PLAIN", "Fault", "JobPlan", "Story", "draw_story"]

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
)
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
    ),
    "local": ("full_folder", "damaged_record"),
}
POLICIES = ("max-speedup", "max-speedup", "price", "price", "boa", "equal", "srtf", "fifo", "greedy-keep", "las")
CLOUDS = ("plain", "aws", "plain", "local", "plain", "aws", "plain")  # by the number of the seed: one command, all
ON_NODE_LOSS = ("continue",) * 5 + ("replace", "replace", "restart", "fail")
SHORT = 0.3  # of the seeds: their store keeps next to nothing, the rest is in the archive and on the shelf
SPAN_S = 300.0
EARLIEST_S = 20.0
FEWEST, MOST = 3, 12  # faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something goes wrong at `at_s` (of the world's age); `dice` decide with whom and how, and nothing else."""

    at_s: float
    kind: str
    dice: int

    def random(self) -> random.Random:
        """Its own."""
        return random.Random(f"{self.kind}/{self.at_s}/{self.dice}")  # noqa: S311 - no secret


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
    told_inside: bool = False  # machines learn from a service of their own that they will be taken


def draw_story(seed: int, kinds: Sequence[str] = PLAIN + KNOWN, *, cloud: str = "", policy: str = "") -> Story:
    """The story of a seed. Each part has dice of its own, so that other kinds of faults leave the jobs as they were."""
    dice, cloud = _dice(seed, "story"), cloud or CLOUDS[seed % len(CLOUDS)]
    purse = dice.random() < 0.4
    return Story(
        seed=seed,
        jobs=tuple(_draw_job(seed, number) for number in range(dice.randint(1, 3))),
        faults=draw_faults(seed, (*kinds, *OF_CLOUD.get(cloud, ()))),
        gpus_per_node=dice.choice([1, 1, 2]),
        most_nodes=dice.randint(1, 4),
        purse_usd=round(dice.uniform(0.08, 0.4), 4) if purse else None,
        keeps_records=dice.random() < 0.5,
        cloud=cloud,
        policy=policy or dice.choice(POLICIES),
        think_s=dice.choice([0.02, 0.02, 0.5, 3.0]),
        paces=draw_paces(seed),
        http=dice.random() < 0.08,
        told_inside=_dice(seed, "inside").random() < 0.3,
    )


def draw_faults(seed: int, kinds: Sequence[str], span_s: float = SPAN_S) -> tuple[Fault, ...]:
    """In order of time."""
    dice = _dice(seed, "faults")
    faults = [
        Fault(
            at_s=round(dice.uniform(EARLIEST_S, span_s), 3), kind=dice.choice(list(kinds)), dice=dice.randrange(1 << 30)
        )
        for _ in range(dice.randint(FEWEST, MOST))
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def draw_paces(seed: int) -> Paces:
    """Other ones than ours find what ours hide; and seldom ticks make quick seeds."""
    dice = _dice(seed, "paces")
    paces = Paces(
        tick_s=dice.choice([0.25, 1.0, 1.0, 1.0]),
        save_s=dice.choice([2.0, 5.0]),
        sweep_s=dice.choice([5.0, 15.0]),
        absences=dice.choice([2, 3]),
        agent_comes_s=dice.choice([45.0, 60.0]),
        agents_come_back_s=dice.choice([3.0, 6.0]),
        rent_tries=dice.choice([3, 5]),
        events_a_snapshot=dice.choice([20, 200]),
    )
    if dice.random() >= SHORT:
        return paces
    return replace(
        paces,
        events_a_snapshot=dice.choice([5, 20]),
        events_a_file=dice.choice([10, 40]),
        history_kept=dice.choice([10, 60]),
        jobs_kept=dice.choice([0, 1]),
        jobs_shelved=1,
    )


def _draw_job(seed: int, number: int) -> JobPlan:
    dice = _dice(seed, f"job {number}")
    sdk = dice.random() < 0.75
    return JobPlan(
        name=f"job{number}",
        at_s=round(dice.uniform(1.0, 90.0), 3),
        max_workers=dice.randint(1, 3),
        steps=dice.randint(60, 600),
        step_s=dice.choice([0.2, 0.5, 1.0]),
        boot_s=round(dice.uniform(0.5, 4.0), 3),
        write_s=round(dice.uniform(0.1, 3.0), 3),
        hang_s=dice.choice([60.0, 120.0, 300.0]),
        sdk=sdk,
        fails=dice.choice([0, 0, 0, 0, 0, 1, 3]),
        purse_usd=round(dice.uniform(0.05, 0.2), 4) if dice.random() < 0.15 else None,
        on_node_loss=dice.choice(ON_NODE_LOSS),
        checkpoint_every_s=dice.choice([None, 8.0, 25.0]) if sdk else None,
    )


def _dice(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}/{name}")  # noqa: S311 - no secret

"""Questions of users that change nothing, or that cannot be granted; and policies that answer what is no plan."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from sublet.domain.plan import Plan, Snapshot
from sublet.domain.shape import Shape
from sublet.errors import SubletError
from sublet.runtime.controller_api.api import ControllerApi
from sublet_lab.world.stage import Stage

Question = Callable[[ControllerApi], Coroutine[Any, Any, Any]]


# ---------------------------------------------------------------------- users


def _user_asks(stage: Stage, rng: random.Random) -> bool:
    """A user asks for everything, about a job and about all. The effect is an answer."""
    name = rng.choice([plan.name for plan in stage.story.jobs])
    job_id = stage.users.promised.get(name, f"{name}-7")  # else one that there is not
    rank = rng.choice([0, 0, 1, None])
    questions: list[Question] = [
        lambda api: api.jobs(),
        lambda api: api.job(job_id),
        lambda api: api.explain(job_id),
        lambda api: api.events(job_id, limit=rng.choice([1, 1000])),
        lambda api: api.events(),
        lambda api: api.log_parts(job_id, rank=rank),
        lambda api: _every_log(api, job_id),
        lambda api: api.nodes(),
        lambda api: api.cost(job_id),
        lambda api: api.cost(),
        lambda api: api.budget(),
        lambda api: api.health(),
        lambda api: api.metrics(),
    ]
    first = _Once(stage, "user_asks")
    for question in questions:
        _ask(stage, question, first)
    return False


async def _every_log(api: ControllerApi, job_id: str) -> None:
    """The log of each worker by its name, and of one that never was."""
    for part in (await api.log_parts(job_id, rank=None)).parts:
        await api.log_parts(job_id, worker_id=part.worker_id)
    await api.log_parts(job_id, worker_id="nobody")


def _user_bids(stage: Stage, rng: random.Random) -> bool:
    """A user asks for a dry run, and submits a job that can never run. The effect is a refusal.

    W: what can never run is refused when it is brought.
    """
    plan = rng.choice(stage.story.jobs)
    spec = replace(stage.users.spec_of(plan), name="bid", work=5_000.0, samples_per_s=2.0)
    possible: list[dict[str, Any]] = [{}, {"sizes": (1, 2), "max_workers": 2}, {"deadline_s": 86_400.0}]
    _ask(stage, lambda api: api.dry_run(replace(spec, **rng.choice(possible))))
    impossible: list[dict[str, Any]] = [
        {"accelerators": ("H100",)},
        {"min_workers": 1000, "max_workers": 1000},
        {"purse_usd": 1e-6},
        {"deadline_s": 1.0},
    ]

    async def bring(api: ControllerApi) -> None:
        try:
            taken = await api.submit(replace(spec, **rng.choice(impossible)), key="bid")
        except SubletError:
            stage.effects["user_bids"] += 1
        else:
            stage.truth.complaints.append(("W", f"{taken} was taken, and can never run"))

    stage.users.ask(bring)
    return False


@dataclass(slots=True)
class _Once:
    """An effect of one fault."""

    stage: Stage
    kind: str
    told: bool = False

    def __call__(self) -> None:
        self.stage.effects[self.kind] += not self.told
        self.told = True


def _ask(stage: Stage, question: Question, answered: Callable[[], None] = lambda: None) -> None:
    async def ask(api: ControllerApi) -> None:
        try:
            await question(api)
        except SubletError:
            return  # an answer, too; not one that shows anything
        answered()

    if stage.controllers.ready:
        stage.users.ask(ask)


# ---------------------------------------------------------------------- policies


class _Unspeakable(Exception):
    """An error whose text raises."""

    def __str__(self) -> str:
        raise RecursionError("of a policy's own")


@dataclass(frozen=True, slots=True)
class _OddWeighing:
    """Odd alternatives of a plug-in."""

    hour_usd: Any
    said: tuple[Any, ...] = ()

    def rows(self) -> tuple[Any, ...]:
        """As it likes."""
        return self.said


def _raise(error: BaseException) -> Plan:
    raise error


def _wide(plan: Plan, snapshot: Snapshot) -> Plan:
    """More GPUs for everybody than there are in the world."""
    pool = next(iter(snapshot.pools))
    return replace(plan, shapes={job_id: Shape(pool, 10_000) for job_id in plan.shapes} or {"nobody": Shape(pool, 1)})


def _weighed(weighed: Any) -> Callable[[Plan, Snapshot], Plan]:
    return lambda plan, _: replace(plan, weighed=weighed)


NONSENSE: tuple[Callable[[Plan, Snapshot], object], ...] = (
    lambda *_: None,
    lambda *_: _raise(_Unspeakable()),
    lambda *_: _raise(SystemExit(1)),
    lambda *_: Plan(reasons={"x" * 1000: "why"}),
    lambda *_: Plan(shapes={"x" * 1000: None}),
    lambda *_: Plan(value_of_time_usd_per_h=math.nan),
    lambda *_: Plan(hold={"no such offer": 1}),
    lambda plan, _: replace(plan, reasons=dict.fromkeys(plan.shapes, "y" * 5000)),
    _wide,
    _wide,
    _weighed([1]),
    _weighed({1: None}),
    _weighed({"a": _OddWeighing(hour_usd="much")}),
    _weighed({"a": _OddWeighing(hour_usd=1.0, said=("nothing",))}),
    _weighed({"a": _OddWeighing(hour_usd=1.0, said=(SimpleNamespace(shape=1),))}),
)


def _policy_nonsense(stage: Stage, rng: random.Random) -> bool:
    """The next decisions are none. The effect is that it was asked for one."""
    struck = _Once(stage, "policy_nonsense")
    stage.controllers.policy.talk_nonsense(rng.sample(NONSENSE, rng.randint(1, 3)), struck)
    return False


ASKING_KINDS: dict[str, Callable[[Stage, random.Random], bool]] = {
    "user_asks": _user_asks,
    "user_bids": _user_bids,
    "policy_nonsense": _policy_nonsense,
}

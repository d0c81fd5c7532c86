"""Users: they bring jobs with a key and ask until they are answered, whoever answers by then."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from sublet.errors import BadInput, NotNow, SubletError
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.runtime.jobs.serialize import spec_to_json
from sublet.runtime.jobs.spec import JobSpec
from sublet.testing.world.controllers import Controllers
from sublet.testing.world.heap import World
from sublet.testing.world.loop import LoopProcess
from sublet.testing.world.story import JobPlan, Story

__all__ = ["SECRET", "Users"]

AGAIN_S = 5.0  # until they ask once more
TRIES = 400
REPLACE_S = 120.0  # for which jobs wait for another node
SECRET = "s3cr3t"  # noqa: S105 - a law looks for it where it must not be
NO_ANSWER = 500  # and above: it may have happened or not

Verb = Callable[[ControllerApi, str], Coroutine[Any, Any, Any]]  # what is asked about a job, by id


class Users:
    """All of them."""

    def __init__(self, story: Story, world: World, controllers: Controllers) -> None:
        self._story, self._world, self._controllers = story, world, controllers
        self.promised: dict[str, str] = {}  # name -> job id, as it was answered
        self.refused: dict[str, str] = {}  # name -> why it was not taken
        self.cancelled: set[str] = set()  # names
        self.paused: set[str] = set()
        self.topped_up_usd = 0.0
        self.doubles: list[str] = []  # a second job for one key
        self._wishes: dict[str, list[Verb]] = {}  # by name, in the order in which they are to be granted
        for plan in story.jobs:
            world.after(plan.at_s, self._submit, plan, TRIES)

    def spec_of(self, plan: JobPlan) -> JobSpec:
        """What they submit."""
        return JobSpec(
            name=plan.name,
            argv=("train",),
            cwd="/",
            min_workers=1,
            max_workers=plan.max_workers,
            sdk=plan.sdk,
            on_node_loss=OnNodeLoss(plan.on_node_loss),
            replace_s=REPLACE_S,
            hang_s=plan.hang_s,
            checkpoint_every_s=plan.checkpoint_every_s,
            secrets={"KEY": f"{SECRET}-{plan.name}"},
            purse_usd=plan.purse_usd,
            work=None if plan.sdk else float(plan.steps),
            samples_per_s=None if plan.sdk else 1.0 / plan.step_s,
        )

    # ------------------------------------------------------------------ what they want

    def _submit(self, plan: JobPlan, tries: int) -> None:
        if plan.name in self.promised or plan.name in self.refused or not tries:
            return
        spec, key = self.spec_of(plan), f"key-{plan.name}"
        if self._controllers.border is not None:
            body = {"job": spec_to_json(spec, secrets=True)}
            self._post("/v1/jobs", body, lambda status, said: self._answered(plan, status, said), key)
        else:
            self._ask(lambda api: self._bring(api, plan, spec, key))
        self._world.after(AGAIN_S, self._submit, plan, tries - 1)

    async def _bring(self, api: ControllerApi, plan: JobPlan, spec: JobSpec, key: str) -> None:
        try:
            answer = await api.submit(spec, key=key)
        except (NotNow, BadInput):
            return  # not by this controller: they ask the next
        except SubletError as error:
            self._answered(plan, 400, {"error": {"message": str(error)}})
        else:
            self._answered(plan, 200, dict(answer))

    def _answered(self, plan: JobPlan, status: int, said: dict[str, Any]) -> None:
        if status >= NO_ANSWER:
            return
        if status >= 400:
            self.refused.setdefault(plan.name, str(said))
            return
        job_id = str(said["job_id"])
        if self.promised.setdefault(plan.name, job_id) != job_id:
            self.doubles.append(f"{plan.name}: {self.promised[plan.name]} and {job_id} for one key")

    def pause(self, name: str, for_s: float) -> None:
        """And let it go on later: they never forget to."""
        if name not in self.cancelled:
            self.paused.add(name)
            self._insist(name, lambda api, job_id: api.pause(job_id))
            self._world.after(for_s, self.resume, name)

    def resume(self, name: str) -> None:
        """Let it go on."""
        self.paused.discard(name)
        self._insist(name, lambda api, job_id: api.resume(job_id))

    def cancel(self, name: str) -> None:
        """They do not want it any more."""
        self.cancelled.add(name)
        self._insist(name, lambda api, job_id: api.cancel(job_id))

    def scale(self, name: str, high: int) -> None:
        """Another width."""
        self._insist(name, lambda api, job_id: api.scale(job_id, low=1, high=high))

    def top_up(self, usd: float) -> None:
        """More for the purse of all; asked once, since twice would be twice as much."""
        if self._story.purse_usd is not None:
            self.topped_up_usd += usd  # it may be there, or not: it may be spent
            self._ask(lambda api: _quietly(lambda: api.top_up(usd)))

    # ------------------------------------------------------------------ how they ask

    def _insist(self, name: str, verb: Verb) -> None:
        """One thing after the other: nobody resumes what they have not been told is paused."""
        wishes = self._wishes.setdefault(name, [])
        wishes.append(verb)
        if len(wishes) == 1:
            self._try(name, None, None, TRIES)

    def _try(self, name: str, wish: Verb | None, asked: LoopProcess | None, tries: int) -> None:
        """Ask for the first wish; once more only where whoever was asked for it is gone."""
        wishes, job_id = self._wishes[name], self.promised.get(name)
        if not wishes or not tries or name in self.refused:
            wishes.clear()
            return
        verb = wishes[0]
        if job_id is not None and (verb is not wish or asked is None or asked.dead):

            async def ask(api: ControllerApi) -> None:
                await _quietly(lambda: verb(api, job_id))
                if wishes and wishes[0] is verb:
                    del wishes[0]

            wish, asked = verb, self._controllers.process if self._ask(ask) else None
        self._world.after(AGAIN_S, self._try, name, wish, asked, tries - 1)

    def _ask(self, question: Callable[[ControllerApi], Coroutine[Any, Any, Any]]) -> bool:
        """Whether there is anybody to ask."""
        process, api = self._controllers.process, self._controllers.api
        if not self._controllers.alive or process is None or api is None:
            return False
        process.spawn(question(api))
        return True

    def _post(self, path: str, body: dict[str, Any], hear: Callable[[int, dict[str, Any]], None], key: str) -> None:
        if self._controllers.alive and self._controllers.border is not None:
            self._controllers.border.post(path, body, hear, key=key)


async def _quietly(ask: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Whatever is refused: it is an answer."""
    try:
        await ask()
    except SubletError:
        return

"""Users: they submit jobs with a key and ask until they are answered, by any controller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from sublet.errors import BadInput, NotNow, StaleController, StoreFailed, SubletError
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.runtime.jobs.spec import JobSpec, spec_to_json
from sublet_lab.world.controllers import Controllers
from sublet_lab.world.heap import Struck, World, nobody
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.story import JobPlan, Story

AGAIN_S = 5.0  # until they ask once more
TRIES = 400
REPLACE_S = 120.0  # for which jobs wait for another node
SECRET = "s3cr3t"  # noqa: S105 - a law looks for it where it must not be
NO_ANSWER = 500  # and above: it may have happened or not
# Of a controller whose disk is full, or where another one has begun: ask that one.
NOT_HERE = (BadInput.exit_code, StoreFailed.exit_code, StaleController.exit_code)
NO_MONEY = 110  # the exit code of what is refused because it could not be paid for


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """A request about a job: by a call with its id, or by HTTP."""

    verb: str
    call: Callable[[ControllerApi, str], Coroutine[Any, Any, Any]]
    body: Mapping[str, Any] = field(default_factory=dict)
    granted: Struck = nobody  # told when it is granted


class Users:
    """All of them."""

    def __init__(self, story: Story, world: World, controllers: Controllers) -> None:
        self._story, self._world, self._controllers = story, world, controllers
        self.promised: dict[str, str] = {}  # name -> job id, as it was answered
        self.refused: dict[str, str] = {}  # name -> why it was not taken
        self.cancelled: set[str] = set()  # names
        self.paused: set[str] = set()
        self.penniless: set[str] = set()  # their jobs were not resumed, since there was nothing to pay for them
        self.topped_up_usd = 0.0
        self.topped_up: defaultdict[str, float] = defaultdict(float)  # dollars, by the name of the job
        self.doubles: list[str] = []  # a second job for one key
        self._keys = 0
        self._unanswered: set[Wish] = set()  # by HTTP: it may have happened or not
        self._wishes: dict[str, list[Wish]] = {}  # by name, in the order in which they are to be granted
        for plan in story.jobs:
            world.after(plan.at_s, self._submit, plan, TRIES)

    def spec_of(self, plan: JobPlan) -> JobSpec:
        """Their submission."""
        return JobSpec(
            name=plan.name,
            argv=("train",),
            cwd="/",
            min_workers=1,
            max_workers=plan.max_workers,
            stages=plan.stages,
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
            self.ask(lambda api: self._bring(api, plan, spec, key))
        self._world.after(AGAIN_S, self._submit, plan, tries - 1)

    async def _bring(self, api: ControllerApi, plan: JobPlan, spec: JobSpec, key: str) -> None:
        try:
            answer = await api.submit(spec, key=key)
        except (NotNow, BadInput, StaleController):
            return  # not by this controller: they ask the next
        except SubletError as error:
            self._answered(plan, 400, {"error": {"message": str(error)}})
        else:
            self._answered(plan, 200, dict(answer))

    def _answered(self, plan: JobPlan, status: int, said: dict[str, Any]) -> None:
        if status >= NO_ANSWER or said.get("exit_code") in NOT_HERE:
            return  # not by this controller: they ask the next
        if status >= 400:
            self.refused.setdefault(plan.name, str(said))
            return
        job_id = str(said["job_id"])
        if self.promised.setdefault(plan.name, job_id) != job_id:
            self.doubles.append(f"{plan.name}: {self.promised[plan.name]} and {job_id} for one key")

    def pause(self, name: str, for_s: float, granted: Struck = nobody) -> None:
        """And let it go on later: they never forget to."""
        if name not in self.cancelled:
            self.paused.add(name)
            self._insist(name, Wish("pause", lambda api, job_id: api.pause(job_id), granted=granted))
            self._world.after(for_s, self.resume, name)

    def resume(self, name: str) -> None:
        """Let it go on."""
        self.paused.discard(name)
        self._insist(name, Wish("resume", lambda api, job_id: api.resume(job_id)))

    def cancel(self, name: str, granted: Struck = nobody) -> None:
        """They do not want it any more."""
        self.cancelled.add(name)
        self._insist(name, Wish("cancel", lambda api, job_id: api.cancel(job_id), granted=granted))

    def scale(self, name: str, high: int, granted: Struck = nobody) -> None:
        """Another worker count."""
        body = {"low": 1, "high": high}
        self._insist(name, Wish("scale", lambda api, job_id: api.scale(job_id, low=1, high=high), body, granted))

    def top_up(self, usd: float, granted: Struck = nobody) -> None:
        """More for the budget of all; asked once, since twice would be twice as much."""
        if self._story.purse_usd is not None:
            self.topped_up_usd += usd  # it may be there, or not: it may be spent
            self._ask_once("/v1/budget/top-up", lambda api: api.top_up(usd), usd, granted)

    def top_up_job(self, name: str, usd: float, granted: Struck = nobody) -> bool:
        """More for a job's own budget; asked once, too. Whether it has one."""
        job_id = self.promised.get(name)
        if job_id is None or all(plan.purse_usd is None for plan in self._story.jobs if plan.name == name):
            return False
        self.topped_up[name] += usd
        self._ask_once(f"/v1/jobs/{job_id}/top-up", lambda api: api.top_up_job(job_id, usd), usd, granted)
        return True

    def ask_again(self, kept: Collection[str]) -> None:
        """An older store was put back, which has these jobs: whatever they were promised since then, they ask for."""
        for plan in self._story.jobs:
            if plan.name in self.promised and self.promised[plan.name] not in kept:
                del self.promised[plan.name]
                self._world.after(AGAIN_S, self._submit, plan, TRIES)
            if plan.name in self.cancelled:
                self.cancel(plan.name)
            elif plan.name in self.paused:
                self._insist(plan.name, Wish("pause", lambda api, job_id: api.pause(job_id)))
            elif plan.name in self.promised:
                self.resume(plan.name)

    @property
    def waiting(self) -> bool:
        """One of them is about to ask for something, or has not been answered."""
        return bool(self.paused) or any(self._wishes.values())

    # ------------------------------------------------------------------ how they ask

    def _insist(self, name: str, wish: Wish) -> None:
        """One thing after the other: a job is not resumed before its pause was told."""
        wishes = self._wishes.setdefault(name, [])
        wishes.append(wish)
        if len(wishes) == 1:
            self._try(name, None, None, TRIES)

    def _try(self, name: str, last: Wish | None, asked: LoopProcess | None, tries: int) -> None:
        """Ask for the first wish; once more only where the asked controller is gone, or could not say."""
        wishes, job_id = self._wishes[name], self.promised.get(name)
        if not wishes or not tries or name in self.refused:
            wishes.clear()
            return
        wish = wishes[0]
        if job_id is not None and (wish is not last or asked is None or asked.dead or wish in self._unanswered):
            self._unanswered.discard(wish)
            last, asked = wish, self._controllers.process if self._ask_for(wish, name, job_id) else None
        self._world.after(AGAIN_S, self._try, name, last, asked, tries - 1)

    def _ask_for(self, wish: Wish, name: str, job_id: str) -> bool:
        """Whether there is anybody to ask. An answer, whatever it is, makes room for the next wish."""
        wishes = self._wishes[name]

        def answered(status: int, said: dict[str, Any]) -> None:
            if status >= NO_ANSWER or said.get("exit_code") in NOT_HERE:
                self._unanswered.add(wish)
                return
            if wish.verb == "resume":
                (self.penniless.add if said.get("exit_code") == NO_MONEY else self.penniless.discard)(name)
            if "exit_code" not in said:
                wish.granted()
            if wishes and wishes[0] is wish:
                del wishes[0]

        async def ask(api: ControllerApi) -> None:
            refusal = await _quietly(lambda: wish.call(api, job_id))
            answered(200, {} if refusal is None else {"exit_code": refusal.exit_code})

        if self._controllers.border is None:
            return self.ask(ask)
        return self._post(f"/v1/jobs/{job_id}/{wish.verb}", wish.body, answered, self._new_key())

    def _ask_once(
        self, path: str, call: Callable[[ControllerApi], Coroutine[Any, Any, Any]], usd: float, granted: Struck
    ) -> None:
        async def ask(api: ControllerApi) -> None:
            if await _quietly(lambda: call(api)) is None:
                granted()

        def answered(status: int, _: dict[str, Any]) -> None:
            if status < 400:
                granted()

        if self._controllers.border is None:
            self.ask(ask)
        else:
            self._post(path, {"usd": usd}, answered, self._new_key())

    def _new_key(self) -> str:
        self._keys += 1
        return f"wish-{self._keys}"

    def ask(self, question: Callable[[ControllerApi], Coroutine[Any, Any, Any]]) -> bool:
        """Whether there is anybody to ask."""
        process, api = self._controllers.process, self._controllers.api
        if not self._controllers.alive or process is None or api is None:
            return False
        process.spawn(question(api))
        return True

    def _post(self, path: str, body: Mapping[str, Any], hear: Callable[[int, dict[str, Any]], None], key: str) -> bool:
        """Whether there is anybody to ask."""
        if not self._controllers.alive or self._controllers.border is None:
            return False
        self._controllers.border.post(path, body, hear, key=key)
        return True


async def _quietly(ask: Callable[[], Coroutine[Any, Any, Any]]) -> SubletError | None:
    """A refusal is an answer, too."""
    try:
        await ask()
    except SubletError as error:
        return error
    return None

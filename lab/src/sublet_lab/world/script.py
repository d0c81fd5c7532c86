"""Workers without the SDK: they print, compute, save files and read them, meet each other at a port, hang and crash.

They know nothing of us but what stands in their environment, as any script. The acts of each at each point are drawn
from the seed, once per job.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sublet.runtime.agent.worker import TICKS_PER_S
from sublet.wire.messages import EXIT_LEFT, StartWorker
from sublet_lab.world.heap import World
from sublet_lab.world.network import Network
from sublet_lab.world.sockets import WorldSocket
from sublet_lab.world.storage import Storage
from sublet_lab.world.truth import JobTruth, Truth

BEAT_S = 1.0  # between two looks at its own work
LINGER_S = 60.0  # that a socket is still seen after its process (TIME_WAIT)
NOTICE_S = 5.0  # at most, until a script sees that another of its group is gone
SIGTERM, SIGKILL = 15, 9


class OnTerm(StrEnum):
    """The reaction of a script to SIGTERM."""

    DIES = "dies"
    SAVES = "saves"  # and leaves with the code that says so
    IGNORES = "ignores"


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the scripts of one job are written."""

    saves_every_s: float = 15.0  # 0 = never
    loads: bool = True  # what it saved
    prints_every_s: float = 5.0  # 0 = never
    child_computes: bool = False  # its processor time is a child's
    on_term: OnTerm = OnTerm.DIES
    babbles: bool = False  # it writes on the line that is not its own

    @classmethod
    def drawn(cls, rng: random.Random) -> Habits:
        """Mostly sound ones."""
        return cls(
            saves_every_s=rng.choice([8.0, 15.0, 15.0, 40.0, 0.0]),
            loads=rng.random() < 0.75,
            prints_every_s=rng.choice([1.0, 5.0, 5.0, 0.0]),
            child_computes=rng.random() < 0.3,
            on_term=rng.choice([OnTerm.DIES, OnTerm.SAVES, OnTerm.SAVES, OnTerm.IGNORES]),
            babbles=rng.random() < 0.1,
        )


class Scripts:
    """All of one world."""

    def __init__(self, world: World, network: Network, storage: Storage, truth: Truth) -> None:
        self.world, self.network, self.storage, self.truth = world, network, storage, truth
        self.habits: dict[str, Habits] = {}  # by job; drawn where unstated
        self._running: dict[int, Script] = {}
        self._crowds: dict[tuple[str, str], Crowd] = {}
        self._sockets: dict[tuple[str, int], float] = {}  # (host, port) -> until when it is seen

    def begin(
        self,
        *,
        host: str,
        pid: int,
        order: StartWorker,
        env: Mapping[str, str],
        line: WorldSocket,
        exited: Callable[[int], None],
    ) -> Script:
        """A process of it."""
        if order.job_id not in self.habits:
            rng = random.Random(f"{self.world.seed}/script/{order.job_id}")  # noqa: S311 - no secret
            self.habits[order.job_id] = Habits.drawn(rng)

        def gone(code: int | None) -> None:
            self._running.pop(pid, None)
            if code is not None:
                exited(code)

        script = self._running[pid] = Script(self, host=host, pid=pid, order=order, env=env, line=line, gone=gone)
        return script

    def crowd(self, job_id: str, env: Mapping[str, str]) -> Crowd:
        """The workers that meet at one port; one alone meets none."""
        place = f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')} {env.get('SUBLET_GENERATION', '')}"
        key = (job_id, place)
        if key not in self._crowds or self._crowds[key].over:
            self._crowds[key] = Crowd(self, int(env.get("WORLD_SIZE", "1")))
        return self._crowds[key]

    # ------------------------------------------------------------------ what is seen of them

    def ticks(self, agent_pid: int, host: str) -> dict[int, list[tuple[int, int]]]:
        """Parent -> (child, ticks)."""
        found: dict[int, list[tuple[int, int]]] = {}
        for script in self._running.values():
            if script.host == host:
                found.setdefault(agent_pid, []).append((script.pid, script.ticks))
                if script.habits.child_computes:
                    found[script.pid] = [(script.child_pid, script.child_ticks)]
        return found

    def speaks(self, host: str, port: int, for_s: float) -> None:
        """A socket of this machine is there so long."""
        until_s = self.world.now_s + for_s
        self._sockets[host, port] = max(until_s, self._sockets.get((host, port), 0.0))

    def met_at(self, host: str, port: int) -> bool:
        """As the tables of a kernel tell."""
        return self._sockets.get((host, port), 0.0) > self.world.now_s


class Script:
    """One process."""

    def __init__(
        self,
        scripts: Scripts,
        *,
        host: str,
        pid: int,
        order: StartWorker,
        env: Mapping[str, str],
        line: WorldSocket,
        gone: Callable[[int | None], None],
    ) -> None:
        self.host, self.pid, self.id, self.job_id = host, pid, order.worker_id, order.job_id
        self.dead = self.hung = False
        self.ticks = self.child_ticks = 0
        self.child_pid = scripts.world.new_pid()
        self.habits = scripts.habits[order.job_id]
        self.rank, self.port = int(env.get("RANK", "0")), int(env.get("MASTER_PORT", "0"))
        self.generation = int(env.get("SUBLET_GENERATION", "0"))
        self._scripts, self._world, self._log = scripts, scripts.world, order.log
        self._folder, self._line, self._gone = env.get("SUBLET_CHECKPOINT_DIR", ""), line, gone
        self._crowd = scripts.crowd(order.job_id, env)
        self.step, self._printed_s, self._saved_s = 0, 0.0, 0.0
        self.truth.started += 1
        self._world.after(self._world.stream("scripts").uniform(0.5, 2.0) * self.truth.boot_s, self._boot)

    @property
    def truth(self) -> JobTruth:
        """The truth of its job."""
        return self._scripts.truth.jobs[self.job_id]

    # ------------------------------------------------------------------ its work

    def _boot(self) -> None:
        if self.dead or self.hung:
            return
        if self.truth.fails > 0:
            self.truth.fails, self.truth.failed = self.truth.fails - 1, self.truth.failed + 1
            self._print("Traceback (most recent call last):\nValueError: not today")
            self.exit(1)
            return
        if self.habits.babbles:
            with contextlib.suppress(OSError):
                self._line.send(b'{"type":"Ready","worker_id":"somebody else"}\n{"type":"Dismiss"}\nno json\n')
        if self.habits.loads and self.rank == 0 and not self._load():
            return
        self._saved_s = self._world.now_s
        if self.port:
            self._scripts.speaks(self.host, self.port, BEAT_S * 3)
        self._crowd.enter(self)
        self._world.after(BEAT_S, self._beat)

    def _load(self) -> bool:
        """Whether it could; a script whose disk is away ends with an error."""
        try:
            self.step = self._newest()
        except OSError as error:
            self._fail(error)
            return False
        if self.step < self.truth.told:
            what = f"{self.job_id}: {self.truth.told} was carried, and {self.step} is found on {self.host}"
            self._scripts.truth.complaints.append(("I4", what))
        self.truth.redone += max(0, self.truth.top - self.step)
        return True

    def _newest(self) -> int:
        """The step that is in its file; 0 without one."""
        try:
            return int(self._scripts.storage.read(self._place))
        except (FileNotFoundError, ValueError):
            return 0

    def _beat(self) -> None:
        """A second of its life."""
        if self.dead:
            return
        self._world.after(BEAT_S, self._beat)
        if self.port:
            self._scripts.speaks(self.host, self.port, BEAT_S * 3)
        if self.hung or not self._crowd.works(self):
            return
        if self.habits.child_computes:
            self.child_ticks += TICKS_PER_S
        else:
            self.ticks += TICKS_PER_S
        if self.rank == 0:
            self._advance()
        if self.habits.prints_every_s and self._world.now_s - self._printed_s >= self.habits.prints_every_s:
            self._printed_s = self._world.now_s
            self._print(f"step {self.step}")

    def _advance(self) -> None:
        truth = self.truth
        self._scripts.truth.stepped(self.job_id, self.generation)
        step_s = truth.step_s / self._crowd.size + 0.001
        self.step = min(truth.steps, self.step + max(1, round(BEAT_S / step_s)))
        truth.top = max(truth.top, self.step)
        if self.step >= truth.steps:
            if self._save():
                truth.done = True
                self._crowd.finish()
        elif self.habits.saves_every_s and self._world.now_s - self._saved_s >= self.habits.saves_every_s:
            self._save()

    def _save(self) -> bool:
        """Whether it could; a script whose disk is away ends with an error."""
        try:
            self._scripts.storage.write(self._place, str(self.step).encode())
        except OSError as error:
            self._fail(error)
            return False
        self._saved_s, self.truth.saved = self._world.now_s, max(self.truth.saved, self.step)
        return True

    def _fail(self, error: OSError) -> None:
        self._print(f"Traceback (most recent call last):\nOSError: {error}")
        self.exit(1)

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._scripts.storage.append(self._log, f"{text}\n")

    @property
    def _place(self) -> str:
        return f"{self._folder}/model.pt"

    # ------------------------------------------------------------------ its end

    def signal(self, number: int) -> None:
        """One that hangs handles none; SIGKILL is no question of handling."""
        if self.dead:
            return
        if number == SIGKILL or (self.habits.on_term is OnTerm.DIES and not self.hung):
            self.exit(-number)
        elif self.habits.on_term is OnTerm.SAVES and not self.hung:
            self._world.after(self.truth.write_s, self._save_and_leave)

    def _save_and_leave(self) -> None:
        if self.dead or self.hung:
            return
        if self.rank == 0 and self.habits.saves_every_s and self.step > 0 and not self._save():
            return
        self.exit(EXIT_LEFT)

    def lose_peer(self) -> None:
        """Another of its group is gone: a collective fails, or waits for ever."""
        if self.dead or self.hung:
            return
        if self._world.stream("scripts").random() < 0.2:
            self.hung = True
        else:
            self._print("RuntimeError: Connection closed by peer")
            self.exit(1)

    def exit(self, code: int) -> None:
        """By itself, or by a signal (minus its number)."""
        if not self.dead:
            self.vanish(code)
            self._line.close()

    def vanish(self, code: int | None = None) -> None:
        """With its machine, unless there is a code."""
        if self.dead:
            return
        self.dead = True
        if self.port and code is not None:
            self._scripts.speaks(self.host, self.port, LINGER_S)
        self._gone(code)
        self._crowd.leave(self, through=code == 0)


class Crowd:
    """The processes of one start of a job, as they meet."""

    def __init__(self, scripts: Scripts, size: int) -> None:
        self._scripts, self.size = scripts, size
        self._members: list[Script] = []
        self.over = False

    def enter(self, script: Script) -> None:
        """One comes."""
        self._members.append(script)

    def works(self, script: Script) -> bool:
        """All are there, none hangs, and packets pass: without one of these, a collective waits."""
        if self.over or script not in self._members or len(self._members) < self.size:
            return False
        hosts = sorted({member.host for member in self._members})
        passes = self._scripts.network.passes
        return not any(member.hung for member in self._members) and all(
            passes(here, there) for here in hosts for there in hosts if here != there
        )

    def finish(self) -> None:
        """All is done: they end one by one."""
        self.over = True
        world = self._scripts.world
        for member in self._members:
            world.after(world.stream("scripts").uniform(0.0, 1.0), member.exit, 0)

    def leave(self, script: Script, *, through: bool) -> None:
        """One is gone; unless it was through, the others notice in a moment."""
        if script in self._members:
            self._members.remove(script)
        if self.over or through:
            return
        self.over = True
        world = self._scripts.world
        for member in self._members:
            world.after(world.stream("scripts").uniform(0.1, NOTICE_S), member.lose_peer)

"""A process that is a member of a grid: it follows orders over its line, and ends where it is told to.

It is forked by `control`, which has torch imported already. When it leaves it says on a pipe what it has trained.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import torch

from sublet.train.checkpoint.saving import Saver
from sublet.train.grid.gathering import Gathered, Gathering
from sublet.train.grid.meeting import PartLost
from sublet.train.grid.member import Member
from sublet.train.grid.saving import Course, Vault, Whole
from sublet.train.grid.stages import Staged
from sublet.train.link.agent_line import AgentLine, ControllerLink, listen
from sublet.train.link.following import Broken, at_once
from sublet.train.numerics.schedules import Schedules
from sublet.train.state.state import Progress, State
from sublet.wire.messages import Joined, Ready, Stepped
from sublet_lab.grid.model import CLIP, MICRO, SEED, SIZE, WORK, a_net, adam

WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Fault:
    """At `point` for the `time`-th time since `applied` steps are, it is killed, or `misses` what it waits for."""

    point: str
    applied: int
    time: int = 1
    misses: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """The place of checkpoints, and the steps after which one is asked for."""

    directory: str
    saves: tuple[int, ...] = ()


class Worker:
    """In the child. It trains until `steps`, and then waits for orders."""

    def __init__(
        self,
        name: str,
        connection: socket.socket,
        facts: int,
        steps: int,
        faults: tuple[Fault, ...],
        kept: Kept | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self._steps, self._facts, self._faults, self._seen = steps, facts, list(faults), dict[Fault, int]()
        self._model = a_net()
        self._staged = Staged(self._model)
        optimizer, self._progress = adam(self._model), Progress(samples=1000 * SIZE, batch=SIZE)
        self._line = AgentLine(connection, name)
        link = ControllerLink(name)
        link.line = self._line
        saver = Saver(None if kept is None else Path(kept.directory), name, link.say)
        state = State(self._model, optimizer, [], None, SEED)
        course = Course(state, self._progress, Schedules([]), saver)
        self._member = member = Member(
            self._staged,
            optimizer,
            seed=SEED,
            clip_norm=CLIP,
            beside=course,
            point=self._at,
        )
        self._saves, self._vault = () if kept is None else kept.saves, None
        if kept is not None:
            whole = Whole(state, self._progress, self._staged, member.holdings, lambda: member.loss)
            self._vault = Vault(saver, whole, member.holdings, self._progress, link, self._at)
            self._member.vault = self._vault
        listen(self._line, connection)
        self._gathering = Gathering(self._line, self._member, wait_s=WAIT_S, samples=lambda: float(self._done()))

    def live(self) -> None:
        """Until it is told to leave."""
        self._line.say(Ready(worker_id=self._line.worker_id, version=2))
        try:
            gathered = at_once(self._gathering.follow())
            while True:
                gathered = self._train(gathered)
        except PartLost:
            self._tell({"lost": True})
        except SystemExit:
            self._tell({"applied": self._member.applied, "weights": self._weights()})

    def _train(self, gathered: Gathered) -> Gathered:
        """Training of one generation; the next."""
        line, member = self._line, self._member
        self._say_joined(gathered)
        try:
            while member.applied < self._steps:
                step = member.applied
                if self._vault is not None:
                    self._line.save_now |= step in self._saves
                    self._vault.until_written()
                found = member.step(
                    gathered.mesh,
                    gathered.seat,
                    WORK,
                    offset=step * SIZE,
                    size=SIZE,
                    micro_batch=MICRO,
                    orders=line.pending,
                )
                line.say(
                    Stepped(
                        worker_id=line.worker_id,
                        generation=gathered.order.generation,
                        step=found.step + 1,
                        done=float(self._done()),
                        epoch=0,
                        loss=found.loss,
                        step_s=1.0,
                        agree_s=found.agree_s,
                        idle_s=found.idle_s,
                    )
                )
                if found.orders:
                    return at_once(self._gathering.change())
        except Broken as error:
            return at_once(self._gathering.recover(str(error)))
        return at_once(self._gathering.follow())

    def _done(self) -> int:
        return max(self._member.applied, 0) * SIZE

    def _say_joined(self, gathered: Gathered) -> None:
        self._line.say(
            Joined(
                worker_id=self._line.worker_id,
                generation=gathered.order.generation,
                step=self._member.applied,
                done=float(self._done()),
                work=float(self._steps * SIZE),
                source=gathered.met.source,
                redone_steps=gathered.met.redone,
                kind=gathered.kind,
                moved_bytes=gathered.met.moved_bytes,
                rolled=gathered.met.rolled,
                met_s=gathered.met_s,
                state_s=gathered.state_s,
                formed_s=gathered.formed_s,
            )
        )

    def _at(self, point: str) -> None:
        for fault in self._faults:
            if fault.point == point and self._member.applied >= fault.applied:
                self._seen[fault] = self._seen.get(fault, 0) + 1
                if self._seen[fault] == fault.time:
                    self._faults.remove(fault)
                    if fault.misses:
                        raise Broken("pretended: the answer was lost")
                    os.kill(os.getpid(), signal.SIGKILL)

    def _weights(self) -> dict[str, str]:
        """The digest of each parameter that we hold."""
        named = dict(self._model.named_parameters())
        held = [name for unit in self._member.holdings.arenas for name in self._staged.units[unit].names]
        return {name: hashlib.sha256(named[name].detach().numpy().tobytes()).hexdigest() for name in held}

    def _tell(self, facts: object) -> None:
        os.write(self._facts, json.dumps(facts).encode())

"""What a member of a grid tells the controller: that it is there, and a few times a second how far it is."""

from __future__ import annotations

from sublet.machine.wall import WALL
from sublet.train.checkpoint.saving import Saver
from sublet.train.grid.gathering import Gathered
from sublet.train.grid.pipeline import Stepped
from sublet.train.grid.stages import Seat
from sublet.train.link.link import ControllerLink
from sublet.train.numerics.memory import Gauge
from sublet.train.sessions.report import EVERY_S, printed
from sublet.train.state.state import Progress
from sublet.wire import messages as wire

__all__ = ["Telling"]


class Telling:
    """Times are means since the last word."""

    def __init__(self, link: ControllerLink, saver: Saver, gauge: Gauge | None = None, *, logs: bool = False) -> None:
        self._link, self._saver, self._gauge, self._logs, self._generation = link, saver, gauge, logs, 0
        self._begin()

    def joined(self, gathered: Gathered, progress: Progress, work: float) -> None:
        """In a new grid; `work`: samples of the whole training."""
        self._generation = gathered.order.generation
        self._link.say(
            wire.Joined(
                worker_id=self._link.worker_id,
                generation=self._generation,
                step=progress.steps,
                done=float(progress.done),
                work=work,
                global_batch=progress.batch,
                source=gathered.met.source,
                redone_steps=gathered.met.redone,
                formed_s=gathered.formed_s,
                state_s=gathered.state_s,
                printed=printed(),
                kind=gathered.kind,
                moved_bytes=gathered.met.moved_bytes,
                rolled=gathered.met.rolled,
                met_s=gathered.met_s,
            )
        )
        self._begin()

    def stepped(self, found: Stepped, progress: Progress, seat: Seat, micro_batch: int) -> None:
        """Copy 0 of each part says it, if it is time; alone nobody hears it, and to look at a loss may wait."""
        if seat.copy != 0 or self._link.line is None:
            return
        now_s = WALL.monotonic()
        self._since.append(found)
        if now_s - self._since_s < EVERY_S:
            return
        count = len(self._since)
        sum_s, agree_s = (sum(getattr(each, name) for each in self._since) / count for name in ("sum_s", "agree_s"))
        self._link.say(
            wire.Stepped(
                worker_id=self._link.worker_id,
                generation=self._generation,
                step=progress.steps,
                done=float(progress.done),
                epoch=progress.epoch,
                loss=found.loss,
                step_s=(now_s - self._since_s) / count,
                comm_s=sum_s + agree_s,
                saved_s=self._saver.blocked_s,
                global_batch=progress.batch,
                local_batch=-(-progress.batch // seat.copies),
                agree_s=agree_s,
                sum_s=sum_s,
                keep_s=sum(each.keep_s for each in self._since) / count,
                idle_s=sum(each.idle_s for each in self._since) / count,
                atoms=-(-progress.batch // micro_batch),
                beside_bytes=0 if self._gauge is None else max(0, self._gauge.take_peak() - self._gauge.resident()),
                units=_means([each.units for each in self._since if each.units]),
                logs=self._logs and seat.part == 0,
            )
        )
        self._saver.blocked_s = 0.0
        self._begin()

    def short(self, generation: int, progress: Progress, micro_batch: int, *, ends: bool) -> None:
        """Our part does not fit into memory: with fewer samples at a time it would be another training."""
        self._link.say(
            wire.ShortOfMemory(
                worker_id=self._link.worker_id,
                generation=generation,
                step=progress.steps,
                samples=micro_batch,
                micro_batch=0,
                ends=ends,
            )
        )

    def _begin(self) -> None:
        self._since_s, self._since = WALL.monotonic(), list[Stepped]()


def _means(rows: list[tuple[float, ...]]) -> tuple[float, ...]:
    """Of each unit."""
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))

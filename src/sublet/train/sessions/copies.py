"""Data parallel: every worker has the whole model, gradients are summed, and all make the same update.

The optimizer's state may lie in ranges, one for each worker (`shards`). A step whose group breaks is dropped without
a trace, and its samples are given again.

Checkpoints are written by rank 0, with the state that only others have: their torch RNG, and their ranges. Rank 0 says
with its gradients that one is due, and at the boundary after that step all send theirs.

Figures of evaluations are summed as gradients are. If the script of some ranks trains on instead, they meet the others
in that sum, and all raise RanksDiffer. A worker that loses the others computes the whole figure by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from sublet.errors import InvalidValue, StaleWriter
from sublet.machine.wall import WALL
from sublet.train.checkpoint.saving import Saver
from sublet.train.data.loading import HeldOut, LossOf
from sublet.train.link.following import Broken, Entry, lost
from sublet.train.link.membership import Membership
from sublet.train.link.peers import BROKEN, PeerGroup, talking
from sublet.train.numerics.gradients import Control
from sublet.train.numerics.seeds import own_rng
from sublet.train.sessions.fitness import SEVERAL, Asked, check_fits
from sublet.train.sessions.options import loss_of
from sublet.train.sessions.position import Position
from sublet.train.sessions.rehearsal import Rehearsed
from sublet.train.sessions.report import Report
from sublet.train.sessions.steps import Steps
from sublet.train.sessions.strategy import Around, Where
from sublet.train.sessions.turns import Turns
from sublet.train.shards.meeting import PeerMesh
from sublet.train.shards.run import SessionRun, fits_of
from sublet.train.state.state import State, broadcast


class Copies:
    """Data parallel, optionally with the optimizer's state in ranges."""

    def __init__(self, model: torch.nn.Module, optimizer: Any, dataset: Any, around: Around) -> None:
        options = around.options
        turns = Turns(model, optimizer)
        if turns.several:
            check_fits(SEVERAL, Asked(options))
        self._around, self._model, self._optimizers = around, model, turns.optimizers
        self.steps = steps = Steps(model, turns, dataset, options)
        self.progress, self.position = steps.progress, Position(steps.progress)
        kept = (around.own, options.seed, options.scaler, steps.stream)
        self.state = State(model, turns.together, steps.schedules.all, *kept)
        self.report = Report(around.link, around.saver, logs=bool(options.trackers))
        members = (self.state, self.progress, around.saver, steps.device)
        self.members = Membership(*members, lambda: SessionRun(steps, self.state, around.saver))
        self.writing = Writing(steps, self.state, around.saver)
        self._rehearsed = Rehearsed(model.named_parameters, around.link, around.saver)
        self._late: Any = None  # see end_epoch

    def open(self) -> None:
        link = self._around.link
        link.open(lambda: fits_of(self.state))
        self.members.following.line = link.line
        self.steps.grows = link.line is None and not self._around.profiles
        self.steps.guard()

    def meet(self) -> None:
        around, steps = self._around, self.steps
        steps.noise.samples_in_all = self.position.extent.samples(self.progress)
        kept = [] if around.own.kept is None else vars(around.own.kept).values()
        steps.schedules.look_for_others(self._optimizers, kept, strict=around.options.strict)
        self._settle_in(self.members.enter())
        self._rehearsed.begin(self.progress.steps, self.members.group.rank)

    def close(self, error: BaseException | None) -> None:
        self.steps.release()
        self._around.saver.close()
        if error is None:
            self.members.group.close()
        elif isinstance(error, torch.OutOfMemoryError):
            self._end_short(error)

    # ------------------------------------------------------------------------------------------- steps

    def begin_epoch(self) -> None:
        self.steps.begin_epoch()

    def batches(self) -> Iterator[Any]:
        """This worker's share of the next step, in micro-batches."""
        steps, members = self.steps, self.members
        for batch in steps.batches(members.group, self._around.link.has_order):
            self.position.probes = steps.probe is not None
            yield batch
        cut = steps.take_cut()
        if cut is not None:
            self.report.short(self.progress, samples=cut.samples, micro_batch=cut.micro_batch)
        if steps.broken is not None:
            self._settle_in(members.recover(steps.give_up(members.group)))
        elif cut is None:
            self.report.count(comm_s=steps.gradients.wait_s)

    def step(self, given: Any, name: str | None, counted: Any) -> None:
        found = self.steps.found(given, counted)
        if found is not None:
            self._around.link.script_waits()
            self.steps.step(found[0], name, found[1])
            self._around.link.script_goes_on()

    def end_epoch(self, epoch: int) -> None:
        """The script has run its lines after the batches of an epoch.

        A group can break in the last step of an epoch so that one member has applied it and another has not. The first
        hands its state to the second in the next epoch, and that state contains the lines after the batches, which the
        second has yet to run. So the second takes the state once more when it has run them.
        """
        progress = self.progress
        if progress.epoch <= epoch and not self.position.over:
            _leave_epoch(self.steps, self.members.group)
        self._agree_on_kept()
        self._catch_up()
        self.steps.schedules.check()

    def _agree_on_kept(self) -> None:
        """Take the kept values of rank 0: others may not have evaluated, and may be rank 0 next."""
        if self._late is None and self._around.own.kept is not None and self._all_are_here:
            state = state_of_rank_0(self.steps, self.members.group, self._around.own.state_of_kept())
            if state is not None and self.members.group.rank != 0:
                self._around.own.load_kept(state)

    def _catch_up(self) -> None:
        if self._late is not None:
            batch = self.progress.batch  # the plan may have changed it since
            self.state.restore(self._late, self.progress, rank=self.members.group.rank)
            self._late, self.progress.batch = None, batch

    # ------------------------------------------------------------------------------------------- between steps

    def boundary(self) -> None:
        line, members = self._around.link.line, self.members
        self._rehearsed.come_to(self.progress.steps, members.group.rank, members.group.world, lambda: self.loss)
        self.steps.schedules.check()
        self.steps.schedules.end_epochs(self.progress)
        numbers, group = self.steps.readings.numbers, members.group
        if group.world > 1:
            self.steps.drift.require_together(group, self.progress, numbers)
        if numbers[Control.DOUBT] > 0.0:
            try:
                self.steps.drift.require_equal(members.group, self.progress)
            except Broken as error:
                self._settle_in(members.recover(str(error)))
        due = self._rehearsed.saves(self.progress.steps)
        asked = members.group.rank == 0 and (self._around.link.take_save_request() or due)
        try:
            agreed = self.steps.readings.numbers[Control.SAVE] > 0.0
            self.writing.tick(WALL.monotonic(), members.group, asked=asked, agreed=agreed)
        except Broken as error:
            self._settle_in(members.recover(str(error)))
        if asked and self._around.profiles:
            self.report.nothing_to_save(self.progress)
        self._tell_step(members.group)
        if line is None:
            return
        if line.gone:
            lost("the agent has closed the line")
        if self.steps.readings.numbers[Control.ORDERS] > 0.0 or (line.pending and not self.steps.gradients.shared):
            self._settle_in(members.change())

    def _settle_in(self, entry: Entry) -> None:
        """In a new group: make gradients fit it, and report."""
        progress, members = self.progress, self.members
        group = members.group
        self.steps.settle_in(group)
        self._around.log.settle(group.rank)
        handed, redone = members.take_handed(), members.take_redone()
        if self.position.past_epoch and handed is not None:
            self._late = copy.deepcopy(handed)  # the optimizer may have taken its tensors over
        self.steps.memory.limit(entry.micro_batch)
        self.steps.obey(entry.batch)
        self.report.joined(
            progress,
            generation=group.generation,
            work=float(self.position.extent.samples(progress)),
            source="checkpoint" if redone else entry.source,
            redone_steps=redone,
            formed_s=entry.formed_s,
            state_s=entry.state_s,
            moved_bytes=members.moved_bytes,
        )

    def _tell_step(self, group: PeerGroup) -> None:
        report, progress, first = self.report, self.progress, group.rank == 0
        if report.is_due(first=first):
            profile, noise = report.profile(self.steps) if first else None, progress.noise.scale
            report.stepped(progress, loss=self.loss, workers=group.world, first=first, noise=noise, profile=profile)

    def _end_short(self, error: BaseException) -> None:
        """The script's own code ran out of memory: another process has to go on with smaller micro-batches."""
        cut = self.steps.cut_given()
        if cut is not None and self._around.link.line is not None:
            self.report.end_short(self.progress, samples=cut.samples, micro_batch=cut.micro_batch)
        if cut is not None:
            error.add_note(cut.advice)

    def finish(self) -> None:
        self._catch_up()
        self.steps.schedules.end_epochs(self.progress)
        self.position.extent.end(self.progress)
        self._end()

    def _end(self) -> None:
        """The last checkpoint and the last message; every rank waits for both."""
        while True:
            progress, group = self.progress, self.members.group
            try:
                if group.world > 1 and not self.position.extent.reached(progress):
                    with talking():
                        left_together(self.steps, group)
                if group.world > 1:
                    self.steps.drift.require_equal(group, progress)
                    self.writing.collect(group)
            except Broken as error:
                self._settle_in(self.members.recover_behind(str(error)))
                continue
            if group.rank == 0:
                stale = None
                self._around.link.script_goes_on()  # it may be tried for a while, which is not to look like a hang
                try:
                    self._around.saver.save_last(self.state.saved(progress), progress, group.world)
                except StaleWriter as error:
                    if self._around.link.line is None:
                        raise
                    stale = str(error)
                finally:
                    self._around.link.script_waits()
                if stale is not None:  # a newer group has begun: it has the last word
                    self._settle_in(self.members.recover_behind(stale))
                    continue
                self.report.finished(progress, self.loss)
            if group.world == 1:
                return
            try:
                with talking():
                    group.all_reduce(torch.zeros(1))
            except Broken as error:
                if group.rank == 0 or self._around.link.line is None:
                    return
                self._settle_in(self.members.recover_behind(str(error)))
            else:
                return

    # ------------------------------------------------------------------------------------------- evaluations

    def evaluate(self, given: LossOf | None, dataset: Any, limit: int | None) -> float:
        options, steps, group = self._around.options, self.steps, self.members.group
        if steps.under_way:
            raise InvalidValue("evaluate", "a call within a step", "called where s.updated is true, or after an epoch")
        at_a_time = options.micro_batch or options.global_batch
        held_out = HeldOut(dataset, options.collate, options.device, None if limit is None else limit * at_a_time)
        at_a_time = min(at_a_time, -(-options.global_batch // group.world))
        loss = given or self._mean_of
        found = None
        if self._all_are_here:
            share = held_out.mean(self._model, loss, group.rank, group.world, at_a_time)
            self._around.link.script_waits()
            found = summed_figure(steps, group, share)
            self._around.link.script_goes_on()
        if found is not None:
            return found
        return held_out.mean(self._model, loss, 0, 1, at_a_time)

    def _mean_of(self, batch: Any) -> torch.Tensor:
        options = self._around.options
        if options.loss is None or options.sums:
            allowed = "s.evaluate(loss_of, dataset), with a mean over samples, where the loss of the session is a sum"
            raise InvalidValue("evaluate", "a dataset alone", allowed)
        return loss_of(self._model, options.loss, batch, counts=False)[0]

    def told_by_rank_0(self, figures: Sequence[float]) -> list[float]:
        steps, group, found = self.steps, self.members.group, None
        if steps.under_way:
            raise InvalidValue("told_by_rank_0", "a call within a step", "called where s.updated is true")
        if self._all_are_here:
            self._around.link.script_waits()
            told = {"figures": [float(figure) for figure in figures]}
            found = state_of_rank_0(steps, group, told)
            self._around.link.script_goes_on()
        return list(figures if found is None else found["figures"])

    @property
    def _all_are_here(self) -> bool:
        """Whether all of several workers run the same lines of the script now.

        Not where some workers have no samples in a step, nor where this one repeats the first lines of an epoch.
        """
        if self.members.group.world == 1 or self.steps.broken is not None or self.position.is_behind:
            return False
        return self.position.between_batches or self.steps.all_have_samples

    # ------------------------------------------------------------------------------------------- what a script asks

    @property
    def where(self) -> Where:
        """Copies of one part."""
        group = self.members.group
        done = self.steps.updated, self.steps.gives_last
        return Where(group.rank, group.world, group.generation, (group.world, 1), (group.rank, 0), *done)

    @property
    def loss(self) -> float:
        """The last one that was read."""
        return self.steps.readings.numbers[Control.LOSS]

    @property
    def loss_tensor(self) -> torch.Tensor:
        """On its device."""
        return self.steps.readings.loss

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """None without `clip_norm`."""
        return self.steps.grad_norm


def _leave_epoch(steps: Steps, group: PeerGroup) -> None:
    """The script leaves an epoch early: `break` in `for batch in s`, and on to the next one.

    All must leave at the same step, so each says it in a sum of its own; a worker that trains on takes that for the sum
    of its step and learns of it there. A worker that is lost meanwhile is missed in the next step.

    InvalidValue if the script took no batch, or left amid a step; RanksDiffer if others train on.
    """
    progress = steps.progress
    if allowed := _refused(steps):
        left = f"left after {progress.offset} of {progress.samples} samples"
        raise InvalidValue(f"epoch {progress.epoch}", left, allowed)
    progress.end_epoch()
    if group.world == 1:
        return
    try:
        left_together(steps, group)
    except BROKEN:
        group.hang_up()  # the next sum breaks too, and that one is recovered from


def _refused(steps: Steps) -> str:
    """The advice of the error; "" if it may be left."""
    if not steps.progress.begun:
        return "trained by `for batch in s`: nothing was taken from the session in it"
    if steps.under_way:
        return "left where s.updated is true: `if s.updated and ...: break`"
    if steps.stream is not None or steps.adaptive is not None:
        return "trained to its end by `for batch in s`: of a stream, or with a batch that grows, steps=N ends training"
    return ""


class Writing:
    """Checkpoints of one session."""

    def __init__(self, steps: Steps, state: State, saver: Saver) -> None:
        self._steps, self._state, self._saver = steps, state, saver

    def tick(self, now_s: float, group: PeerGroup, *, asked: bool, agreed: bool) -> None:
        """At a boundary of each member; `agreed` if all know that one is due. Broken if a member is lost meanwhile."""
        saver, steps, progress = self._saver, self._steps, self._steps.progress
        tree = partial(self._state.saved, progress)
        if group.world == 1:
            saver.tick(now_s, tree, progress, group.world, asked=asked or steps.save_due)
            steps.save_due = False
            return
        if agreed:
            self.collect(group)
        steps.save_due = group.rank == 0 and (steps.save_due or saver.is_due(now_s, asked=asked))
        if agreed and steps.save_due:
            saver.begin(tree(), progress, group.world)
            steps.save_due = False
        self._state.rng = None
        if steps.shards is not None and steps.shards.is_cut:
            steps.shards.moments.let_go()

    def collect(self, group: PeerGroup) -> None:
        """Rank 0 has all of the state; Broken."""
        self._state.rng = group.rows(own_rng())
        if self._steps.shards is not None and self._steps.shards.is_cut:
            self._steps.shards.collect(PeerMesh(group))


def left_together(steps: Steps, group: PeerGroup) -> None:
    """The script has left its loop before the end, at this very step; one of BROKEN. RanksDiffer if some train on."""
    steps.drift.require_together(group, steps.progress, _summed(steps, group, Control.LEFT))


def summed_figure(steps: Steps, group: PeerGroup, figure: float) -> float | None:
    """The sum of what all members have; None if the group breaks. RanksDiffer if some train on."""
    try:
        found = _summed(steps, group, Control.EVALUATED, figure)
    except BROKEN:
        group.hang_up()  # the next sum breaks too, and that one is recovered from
        return None
    steps.drift.require_together(group, steps.progress, found)
    return found[Control.LOSS]


def state_of_rank_0(steps: Steps, group: PeerGroup, state: Mapping[str, Any]) -> Any:
    """The state of rank 0 at all members; None if the group breaks. RanksDiffer if some train on."""
    if summed_figure(steps, group, 0.0) is None:
        return None
    try:
        with talking():
            return broadcast(group, 0, state)
    except Broken:
        group.hang_up()  # as above
        return None


def _summed(steps: Steps, group: PeerGroup, says: int, figure: float = 0.0) -> list[float]:
    """The control numbers of a sum in which each member says this, beside its figure; one of BROKEN."""
    gradients = steps.gradients
    gradients.arm(group)
    gradients.slots[says].fill_(1.0)
    gradients.slots[Control.LOSS].fill_(figure)
    try:
        gradients.sum(group)
    except BROKEN:
        gradients.give_up(group)  # it may be made again in the next group
        raise
    found: list[float] = gradients.control.tolist()
    gradients.clear()
    return found

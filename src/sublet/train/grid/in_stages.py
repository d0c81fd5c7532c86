"""The strategy of models in stages: every worker has some stages, in as many copies as there are workers for.

All agree on every step, so that it is applied by all or by none (`member`). A step in which a worker is lost is made
again, or was made by others: `step` returns when it is.

A newcomer begins with the next step. Until then the others may still be in the script's lines after the step before, or
behind a loop that ends: one of them says what comes next, and sends the state. If a worker is lost in an evaluation, it
is made again; newcomers take part, and get each micro-batch from that speaker. So no worker waits for a script that has
yet to reach the same line.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sublet.errors import InvalidValue, RanksDiffer, StaleWriter
from sublet.train.data.loading import HeldOut, in_eval_mode
from sublet.train.data.samples import Samples, moved
from sublet.train.grid.gathering import Gathered, Gathering, gathered
from sublet.train.grid.gloo import GlooMesh, Lines, spread
from sublet.train.grid.holdings import needs_of
from sublet.train.grid.member import Member
from sublet.train.grid.pipeline import Atom, Losses, Stepped, Work, atoms, loaded, share
from sublet.train.grid.saving import Course, Vault, Whole
from sublet.train.grid.stages import Seat, Staged, parts_of
from sublet.train.link.following import Broken, lost
from sublet.train.numerics.schedules import Schedules
from sublet.train.numerics.seeds import reseed_host, rng_kept, seed_python_and_numpy
from sublet.train.numerics.updates import Guard
from sublet.train.sessions.fitness import STAGES, Asked, check_fits, check_frozen, check_optimizer
from sublet.train.sessions.position import Position
from sublet.train.sessions.probe import Probe, is_due
from sublet.train.sessions.report import Report
from sublet.train.sessions.strategy import Around, Where
from sublet.train.state.state import Progress, State

LEAVES = "the end of the session waits for the other workers; every one leaves its loop at the same step"
STEP, EVALUATE, END = "step", "evaluate", "end"  # what a script comes to next
SAME = "let what a loop does follow from s.steps, s.epoch, s.loss and evaluations: they are the same at all workers"
AFTER_S = 30.0  # that others are waited for without a word
WAITS = (
    "s.evaluate waits for the other workers; every one calls it, since each has a part of the model, not rank 0 alone"
)


class Step:
    """A step to be made, as `batches()` gives it. Samples are loaded part by part, where they are needed."""

    called = False  # `step`, with it


class InStages:
    """Training in stages."""

    def __init__(self, model: torch.nn.Module, optimizer: Any, dataset: Any, around: Around) -> None:
        options = around.options
        check_fits(STAGES, Asked(options, model, optimizer, dataset))
        check_optimizer(optimizer, in_stages=True)
        self._around, self._model, self._optimizer = around, model, optimizer
        self._device = None if options.device is None else torch.device(options.device)
        if self._device is not None:
            model.to(self._device)
        self._staged, self._guard = Staged(model), Guard([optimizer])
        self._samples = Samples(dataset, options.seed, options.collate, self._device)
        self._schedules = Schedules(options.schedulers, every=options.scheduler_every)
        self.progress = Progress(samples=self._samples.count, batch=options.global_batch)
        self.position, self._micro_batch = Position(self.progress), options.micro_batch or 0
        self._state = State(model, optimizer, self._schedules.all, around.own, options.seed)
        self.course = Course(self._state, self.progress, self._schedules, around.saver)
        self._report = Report(around.link, around.saver, logs=bool(options.trackers))
        self.member: Member | None = None
        self._vault: Vault | None = None
        self._gathering: Gathering | None = None
        self.mesh = GlooMesh(Lines(), "alone", 0, 1)
        self.seat = Seat(copy=0, part=0, copies=1, parts=parts_of(len(self._staged.blocks), 1))
        self.generation, self._norm = 0, math.nan  # of the last gradient
        self._ordered = False  # all have heard at the end of a step that there are orders: they change before the next
        self._updated = False
        self.judged = math.nan  # what the last evaluation came to
        self._seen: Losses | None = None  # of the step before
        self._under_way: Losses | None = None

    def open(self) -> None:
        self._around.link.open(lambda: needs_of(self._staged, self._optimizer))
        self._guard.begin()

    def close(self, error: BaseException | None) -> None:
        self._guard.end()
        if self._vault is not None:
            self._vault.close()
        if self._gathering is not None:
            ended = isinstance(error, SystemExit | torch.OutOfMemoryError)  # which is told in words of its own
            if error is None or ended or self.position.over:
                self._gathering.drop()
            else:
                self._gathering.fail(error)
        if isinstance(error, torch.OutOfMemoryError) and self._around.link.line is not None:
            self._report.end_short(self.progress, samples=self._micro_batch, micro_batch=0)

    # ------------------------------------------------------------------------------------------- steps

    def begin_epoch(self) -> None:
        if not self.progress.offset:
            seed_python_and_numpy(self._around.options.seed, self.progress.epoch)

    def batches(self) -> Iterator[Step]:
        """One for the step."""
        batch = Step()
        yield batch
        if not batch.called:
            raise InvalidValue("step", "no call", "called once for every batch of batches()")

    def step(self, given: Any, name: str | None, counted: Any) -> None:
        """See Strategy. If the others have gone on meanwhile, or back to a checkpoint, theirs counts."""
        if not isinstance(given, Step) or name is not None or counted is not None:
            raise InvalidValue("step", type(given).__name__, "what batches() gave: s.step(batch)")
        if given.called:
            raise InvalidValue("step", "a second call for one batch", "called once for every batch of batches()")
        assert self.member is not None  # noqa: S101 - it has begun
        given.called, self._updated = True, False
        check_frozen(self.member.frozen, in_stages=True)
        self._around.link.script_waits()
        self._make(self.member)
        self._schedules.check()
        self._around.link.script_goes_on()

    def _make(self, member: Member) -> None:
        progress = self.progress
        before = progress.steps
        while progress.steps == before and not self.position.over:
            try:
                if self.together(STEP) == END:
                    return
                member.new = False
                made = self._made(member)
                if self._around.link.line is not None and self.seat.copy == 0:  # one of each part; others say the same
                    self._tell(made)
                self._ordered, self._norm, self._updated = made.orders, made.norm, True
                made.losses.send()
                self._seen, self._under_way = self._under_way or made.losses, made.losses
                return
            except Broken as error:
                why = str(error)
            except torch.OutOfMemoryError as error:
                if self._around.link.line is None or member.pending >= 0:  # no controller; or an update is half made
                    raise
                why = str(error)  # the graph goes with the frames of the error, when we have left it
                self._report.short(progress, samples=self._micro_batch, micro_batch=0)
            self.recover(why)
            if member.new:
                before = progress.steps
            self._updated = progress.steps > before

    def _made(self, member: Member) -> Stepped:
        progress, seed = self.progress, self._around.options.seed
        if parts := self._around.link.take_keeps():
            member.keep(self.seat, parts)
        if progress.steps != member.applied:  # by the counter that says which samples come next
            hint = "report this: it is a fault in sublet; 'sublet resume' goes on from the checkpoint before it"
            what = f"the number of steps ({progress.steps} in place of {member.applied})"
            raise RanksDiffer(what, ranks=[], step=member.applied, hint=hint)
        self.look(member)
        return member.step(
            self.mesh,
            self.seat,
            self.work(lambda atom: loaded(self._samples, seed, progress.epoch, atom)),
            offset=progress.offset,
            size=progress.size,
            micro_batch=self._micro_batch,
            orders=self._around.link.has_order(),
        )

    def _tell(self, made: Stepped) -> None:
        """Report a step. The loss, which may wait for a GPU, is read only if a message is due."""
        report, progress, seat = self._report, self.progress, self.seat
        times = {name: getattr(made, name) for name in ("agree_s", "sum_s", "keep_s", "idle_s")}
        report.count(comm_s=made.sum_s + made.agree_s, units=made.units, **times)
        if report.is_due():
            beside_bytes = report.beside_bytes(self._staged.device)
            facts = {"atoms": -(-progress.batch // self._micro_batch), "beside_bytes": beside_bytes}
            report.stepped(progress, loss=made.loss, workers=seat.copies, first=seat.part == 0, **facts)

    # ------------------------------------------------------------------------------------------- between steps

    def meet(self) -> None:
        around, options = self._around, self._around.options
        kept = [] if around.own.kept is None else vars(around.own.kept).values()
        self._schedules.look_for_others([self._optimizer], kept, strict=options.strict)
        self.member = member = Member(
            self._staged,
            self._optimizer,
            seed=options.seed,
            clip_norm=options.clip_norm,
            beside=self.course,
            guard=self._guard,
        )
        whole = Whole(self._state, self.progress, self._staged, member.holdings, lambda: member.loss)
        self._vault = member.vault = Vault(around.saver, whole, member.holdings, self.progress, around.link)
        if around.link.line is None:
            member.meet(self.mesh, self.seat)
            return
        self._gathering = Gathering(around.link.line, member, samples=lambda: float(self.progress.done))
        self._settle_in(self._following(lambda gathering: gathering.follow()))

    def boundary(self) -> None:
        """See Strategy. A newcomer waits for its first step."""
        self._schedules.check()
        self._schedules.end_epochs(self.progress)
        if self._ordered and not self.position.over:
            self._settle_in(self._following(lambda gathering: gathering.change()))
        while self.member is not None and self.member.new and self.member.speaker is not None:
            try:
                self.together(STEP)
            except Broken as error:
                self.recover(str(error))

    def end_epoch(self, epoch: int) -> None:
        went_back = self.member is not None and self.member.new
        if not self.position.through and not went_back:
            left = f"left after {self.progress.offset} of {self.progress.samples} samples"
            raise InvalidValue(f"epoch {epoch}", left, "trained to its end where the model is trained in stages")
        self._schedules.check()

    def recover(self, why: str) -> None:
        """Into the next grid."""
        self._settle_in(self._following(lambda gathering: gathering.recover(why)))

    def _following(self, into: Callable[[Gathering], Coroutine[Any, Any, Gathered]]) -> Gathered:
        assert self._gathering is not None  # noqa: S101 - alone nothing breaks, and there are no orders
        return gathered(into(self._gathering))

    def _settle_in(self, found: Gathered) -> None:
        """In a new grid: report."""
        self._ordered = False
        self.mesh, self.seat, self.generation = found.mesh, found.seat, found.order.generation
        self._around.log.settle(self.mesh.rank)
        if self.member is not None and self.member.new:
            self.position.arrive()
        self._report.joined(
            self.progress,
            generation=self.generation,
            work=float(self.position.extent.samples(self.progress)),
            source=found.met.source,
            redone_steps=found.met.redone,
            formed_s=found.formed_s,
            state_s=found.state_s,
            kind=found.kind,
            moved_bytes=found.met.moved_bytes,
            rolled=found.met.rolled,
            met_s=found.met_s,
        )

    def finish(self) -> None:
        """See Strategy. Every worker waits for the last message."""
        progress, link, member = self.progress, self._around.link, self.member
        assert member is not None  # noqa: S101 - it has begun
        assert self._vault is not None  # noqa: S101 - as above
        self._schedules.end_epochs(progress)
        while True:
            if member.new and member.speaker is None and not self.position.over:
                lost(f"all went back to step {progress.steps}, and the script has left its loop")
            if not member.new:
                self.position.extent.end(progress)
            try:
                if self.together(END) != END:
                    raise InvalidValue("the loop", f"left at step {progress.steps}, where others train on", SAME)
                if not self.position.extent.reached(progress):
                    with awaited(LEAVES):
                        self.mesh.sum(torch.zeros(1), self.seat.everyone())
                link.script_goes_on()  # it may be tried again for a while, which is not to look like a hang
                try:
                    self._vault.save_last(self.mesh, self.seat.everyone())
                finally:
                    link.script_waits()
            except (Broken, StaleWriter) as error:  # of the latter: a newer grid has begun, which has the last word
                if link.line is None:
                    raise
                self.recover(str(error))
                continue
            if self.mesh.rank == 0:
                self._report.finished(progress, self.loss)
            try:
                self.mesh.sum(torch.zeros(1), self.seat.everyone())
                self.mesh.part(self.seat.everyone())
            except Broken as error:
                if self.mesh.rank == 0:
                    return
                self.recover(str(error))
            else:
                return

    # ------------------------------------------------------------------------------------------- evaluations

    def evaluate(self, loss_of: Any, dataset: Any, limit: int | None) -> float:
        """See Strategy. Before a newcomer's first step it is the result of the others' last evaluation."""
        if loss_of is not None:
            allowed = "s.evaluate(dataset), the mean of loss=, where the model is trained in stages"
            raise InvalidValue("evaluate", "with a function of its own", allowed)
        if (member := self.member) is None:
            raise InvalidValue("evaluate", "a call before the first batch", "called in the loop, or after it")
        most = None if limit is None else limit * self._micro_batch
        samples = HeldOut(dataset, self._around.options.collate, self._device, most)
        size = samples.count
        self._around.link.script_waits()
        while not member.new:
            try:
                with awaited(WAITS):
                    self.together(EVALUATE, size=size)
                    self._judge(member, samples, size)
                break
            except Broken as error:
                why = str(error)
            self.recover(why)
        self._around.link.script_goes_on()
        return self.judged

    def together(self, does: str, **facts: Any) -> str:
        """Agree on what comes next: where there are newcomers, a speaker says it, and sends the state.

        A newcomer takes part in evaluations until a step comes, or the end. Broken.
        """
        member = self.member
        while member is not None and member.speaker is not None:
            speaks = self.mesh.rank == member.speaker
            told = {**facts, "does": does, "beside": self.course.tree()} if speaks else None
            word = spread(self.mesh, member.speaker, told, self.seat.everyone())
            if not member.new and word["does"] != does:
                what = f"what the loop comes to ({does} here, {word['does']} elsewhere)"
                raise RanksDiffer(what, ranks=[], step=self.position.progress.steps, hint=SAME)
            if word["does"] == EVALUATE and not member.new:
                break
            if word["does"] == EVALUATE:
                self._judge(member, None, word["size"])
                continue
            does, member.speaker = word["does"], None
            if member.new:
                self.course.take(word["beside"])
                self.position.is_left = does == END
        return does

    def _judge(self, member: Member, samples: HeldOut | None, size: int) -> None:
        """With all of the grid; where newcomers take part, the speaker sends the samples. Broken."""
        mesh, seat, speaker = self.mesh, self.seat, member.speaker
        work, loss = atoms(0, size, self._micro_batch), torch.zeros(1, dtype=torch.float64)

        def load(atom: Atom) -> Any:
            assert samples is not None  # noqa: S101 - our script has called for it
            with rng_kept():
                reseed_host(self._around.options.seed, atom.start)
                return samples.load(atom.start, atom.count)

        def is_there(_: Atom) -> Any:
            return batch

        with in_eval_mode(self._model):
            if speaker is None:
                mine = share(work, seat.copy, seat.copies)
                loss[0] = member.judge(mesh, seat, self.work(load), mine, size)
            for number, atom in enumerate(work if speaker is not None else ()):
                told = {"batch": load(atom)} if mesh.rank == speaker else None
                batch = spread(mesh, speaker or 0, told, seat.everyone())["batch"]
                if self._device is not None:
                    batch = moved(batch, self._device)
                mine = (atom,) if number % seat.copies == seat.copy else ()
                loss[0] += member.judge(mesh, seat, self.work(is_there), mine, size)
            mesh.sum(loss, seat.everyone())
        self.judged = float(loss)

    def look(self, member: Member) -> None:
        """At the first step: what the loss of its first micro-batch is (`probe`), by the first copy. Broken."""
        progress, options = self.position.progress, self._around.options
        if progress.steps or not is_due(options):
            return
        whole = Atom(progress.offset, min(self._micro_batch, progress.size))
        probe = Probe(self._model, options, whole.count)

        def load(part: Atom) -> Any:
            batch = loaded(self._samples, options.seed, progress.epoch, whole)
            return probe.part(batch, part.start, part.start + part.count)

        def told(output: Any, batch: Any) -> torch.Tensor:
            assert options.loss is not None  # noqa: S101 - as in `work`
            probe.look()
            found: torch.Tensor = options.loss(output, batch)
            probe.take(found, None)
            return found

        with probe.looking():
            for low, high in probe.ends if self.seat.copy == 0 else ():
                member.judge(self.mesh, self.seat, Work(load, told), (Atom(low, high - low),), high - low)
        probe.conclude(speaks=True)  # the last part alone has been told

    def work(self, load: Callable[[Atom], Any]) -> Work:
        """The computation of each micro-batch."""
        assert self._around.options.loss is not None  # noqa: S101 - that is why it is trained in stages
        return Work(load, self._around.options.loss)

    # ------------------------------------------------------------------------------------------- what a script asks

    @property
    def where(self) -> Where:
        """Rank 0 has the first part of the first copy; spare workers count too."""
        seat = self.seat
        grid = seat.copies, len(seat.parts)
        place = seat.copy, seat.part
        return Where(self.mesh.rank, len(seat.everyone()), self.generation, grid, place, self._updated, gives_last=True)

    @property
    def loss(self) -> float:
        """The agreed loss; alone on a GPU that of the step before, which is not waited for."""
        if self.member is None:
            return math.nan
        alone = self._seen is not None and self._staged.device.type == "cuda" and len(self.seat.everyone()) == 1
        return self._seen.total() if alone and self._seen is not None else self.member.loss

    @property
    def loss_tensor(self) -> torch.Tensor:
        """The same number."""
        return torch.tensor(self.loss)

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """None without `clip_norm`."""
        return None if self._around.options.clip_norm is None else torch.tensor(self._norm)

    def told_by_rank_0(self, figures: Sequence[float]) -> list[float]:
        """As given: evaluations are alike at all workers."""
        return list(figures)


@contextmanager
def awaited(why: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Print this on stderr, once, if the block takes longer; it goes on all the same."""
    text = f"sublet: {why}\n"
    timer = threading.Timer(after_s, lambda: sys.stderr.write(text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

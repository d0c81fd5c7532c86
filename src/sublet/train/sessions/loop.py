"""A training run in the user's own loop.

    epochs()    the epochs that are left, from the one that training is in
    batches()   boundary: orders, checkpoints  ->  this worker's share of the next step, in micro-batches
    step(loss)  backward; after the last micro-batch: sum over the workers, update, report

The update happens in `step`; everything that may take time or end the process happens in `epochs` and `batches`. The
strategy knows how workers train one model together (`strategy`), and `position` where in its loop the script is.

The script's lines after the batches of an epoch (schedulers, evaluation) may change the state. So no worker joins and
nothing is saved until they have run: a newcomer begins with the next epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from sublet.errors import InvalidValue
from sublet.train.data.loading import NO_END
from sublet.train.sessions.options import Options
from sublet.train.sessions.position import ENDLESS, Extent, begin, extent_of
from sublet.train.sessions.rehearsal import rehearsed_options
from sublet.train.sessions.strategy import Around, Strategy
from sublet.train.sessions.turns import as_one_module
from sublet.train.state.kept import Keeps
from sublet.wire.rehearsal import cue_here


class Session(Keeps):
    """See `sublet.train.session`, which makes one."""

    def __init__(self, model: Any, optimizer: Any, dataset: Any, options: Options) -> None:
        whole = as_one_module(model)
        self.options = options = rehearsed_options(options, whole)
        self._around = Around(whole, options)
        self._link, self._log, self._own = self._around.link, self._around.log, self._around.own
        self._strategy = _strategy_of(whole, optimizer, dataset, self._around)
        self._position = self._strategy.position
        self._progress = self._position.progress
        self._open = self._entered = self._done = False

    def __enter__(self) -> Self:
        self._strategy.open()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.script_waits()
        ended = False
        try:
            if kind is None and self._entered:
                self._strategy.finish()
            ended = kind is None
        except Exception as refused:
            error = refused
            raise
        finally:
            self._open = False
            self._log.close(finished=ended)
            self._strategy.close(error)

    # ------------------------------------------------------------------------------------------- the loop

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, counted from 0; `for batch in s` gives their batches.

        With `steps=N` the last may end early.
        Training that resumes, and a worker that joins, begin with the epoch that training is in, and with the rest of
        it. What the script does after the batches of an epoch is done once for each epoch.
        """
        if self.options.epochs is None and self.options.steps is None:
            raise InvalidValue("epochs", None, "given to the session: train.session(..., epochs=10), or steps=1000")
        if self._entered:
            raise InvalidValue("epochs()", "a second call", "called once, before any batches()")
        position, progress = self._position, self._progress
        self._begin(self._told())
        while True:
            self._strategy.boundary()
            if position.over:
                break
            epoch = progress.epoch
            position.until = ENDLESS if self._around.profiles else epoch + 1
            position.is_behind = progress.begun
            self._link.script_goes_on()
            yield epoch if self.options.epochs is None else min(epoch, self.options.epochs - 1)
            self._link.script_waits()
            self._strategy.end_epoch(epoch)
        self._done = True
        self._link.script_goes_on()

    def batches(self, epochs: int | None = None) -> Iterator[Any]:
        """The micro-batches of this worker: within `epochs()` those of the epoch, otherwise of the whole training.

        `epochs` counts from the first of the whole training, and can be given to the session instead. What was trained
        before a resume is not trained again. Where the model is trained in stages, there is one for each step: it
        stands for samples that each worker loads where it needs them.
        """
        position = self._position
        if position.until is not None:
            if epochs is not None:
                raise InvalidValue("batches(epochs=...)", epochs, "batches() within epochs(), or `for batch in s`")
            if self._progress.epoch >= position.until:
                raise InvalidValue("batches()", "a second call", "called once for each epoch of epochs()")
            position.is_behind, self._progress.begun = False, True
            yield from self._until_through()
            self._link.script_goes_on()
            return
        told = self._told(epochs)
        if self._entered and (self._done or told != position.extent):
            raise InvalidValue(
                f"batches(epochs={told.epochs})",
                f"a call after batches(epochs={position.extent.epochs})",
                "called once, for the whole training, because a worker that joins later would go through all epochs "
                "again; for something after each epoch: train.session(..., epochs=N), and then "
                "`for epoch in s.epochs():` around `for batch in s:`",
            )
        self._begin(told)
        yield from self._until_through()
        self._strategy.boundary()
        self._done = True
        self._link.script_goes_on()

    def __iter__(self) -> Iterator[Any]:
        """The same as `batches()`."""
        return self.batches()

    def step(self, loss: Any, name: str | None = None, *, counted: torch.Tensor | float | None = None) -> float:
        """Backward from the loss over the micro-batch; after the last one of the step, update the model; `s.loss`.

        It is given the loss or, if the session has `loss=`, the batch. Several optimizers take turns for every batch,
        in their order, and `name` is the optimizer of this loss. Given a function that computes the loss, this process
        survives if that does not fit into memory: the samples come again, fewer at a time. With `reduction="counted"`
        the loss is a sum over `counted` things, such as tokens.
        """
        self._strategy.step(loss, name, counted)
        return self.loss

    def evaluate(self, loss_of: Any, dataset: Any = None, limit: int | None = None) -> float:
        """The mean of `loss_of(batch)` over a dataset, or a DataLoader of one, in the model's eval mode.

        With `loss=` the dataset alone is enough: `s.evaluate(held_out)`. Every worker calls it, at the same step: each
        has its share in it, and all get the result. `limit` counts micro-batches (`micro_batch` samples each, or as
        many as a step has).
        """
        if dataset is not None:
            return self._strategy.evaluate(loss_of, dataset, limit)
        if self.options.loss is None:
            raise InvalidValue("evaluate", "a dataset alone", "s.evaluate(loss_of, dataset); or a session with loss=")
        return self._strategy.evaluate(None, loss_of, limit)

    def told_by_rank_0(self, figures: Sequence[float]) -> list[float]:
        """Rank 0's figures at all ranks, where each has measured its own.

        Every worker calls it, at the same step, with as many. One that loses the others meanwhile keeps its own.
        """
        return self._strategy.told_by_rank_0(figures)

    # ------------------------------------------------------------------------------------------- what a script asks

    def __len__(self) -> int:
        """Steps of an epoch, for bars of progress; a stream, or batches that are drawn, have none."""
        if self._progress.samples >= NO_END:
            raise TypeError("this session has no length: its batches have no end")
        return (self._progress.samples + self._progress.batch - 1) // self._progress.batch

    def __bool__(self) -> bool:
        return True

    @property
    def steps(self) -> int:
        """Steps applied in all, those before a resume included."""
        return self._progress.steps

    @property
    def steps_in_epoch(self) -> int:
        """Steps applied in the epoch that training is in: the number of its next batch, from 0 on."""
        return self.steps - self._progress.before

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self._progress.epoch

    @property
    def samples_done(self) -> int:
        """Samples behind us, over all epochs."""
        return self._progress.done

    @property
    def global_batch(self) -> int:
        """Samples per step now."""
        return self._progress.batch

    @property
    def noise(self) -> float | None:
        """Gradient noise scale in samples; None while it cannot be told."""
        return self._progress.noise.scale

    def log(self, values: Mapping[str, Any]) -> None:
        """Numbers by name, of the last step, to `tracker=`: rank 0 writes each step once."""
        if not self._position.probes:
            self._log.write(values, rank=self.rank, world=self.world, steps=self.steps)

    @property
    def rank(self) -> int:
        """0 for the worker that prints and evaluates."""
        return self._strategy.where.rank

    @property
    def world(self) -> int:
        """Number of workers now."""
        return self._strategy.where.world

    @property
    def generation(self) -> int:
        """Number of the decision that made the present group; 0 without a controller."""
        return self._strategy.where.generation

    @property
    def grid(self) -> tuple[int, int]:
        """Copies of the model, and parts of each: one where it is not trained in stages."""
        return self._strategy.where.grid

    @property
    def place(self) -> tuple[int, int]:
        """(copy, part) of this worker."""
        return self._strategy.where.place

    @property
    def updated(self) -> bool:
        """Whether the last `s.step()` ended a step: not before its last micro-batch, nor where it was dropped."""
        return self._strategy.where.updated

    @property
    def gives_last(self) -> bool:
        """Whether the micro-batch that was given last is the last of its step: `s.step()` with its loss updates."""
        return self._strategy.where.gives_last

    @property
    def loss(self) -> float:
        """Loss over the global batch of the last step (on a GPU: of the one before); of several the last one's."""
        return self._strategy.loss

    @property
    def loss_tensor(self) -> torch.Tensor:
        """Loss over the global batch of the last step itself, where it was computed: nothing has waited for it."""
        return self._strategy.loss_tensor

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """Length of the gradient of the last step, before it was clipped; None without `clip_norm`."""
        return self._strategy.grad_norm

    # ------------------------------------------------------------------------------------------- between steps

    def _told(self, epochs: int | None = None) -> Extent:
        if not self._open:
            raise InvalidValue("session", "not open", "entered: `with train.session(...) as s:`")
        return extent_of(self.options, epochs)

    def _begin(self, extent: Extent) -> None:
        """Before the first step: what is to be done, and our first group."""
        if not self._entered:
            self._entered, self._position.extent = True, extent
            self._own.begin()
            self._link.script_waits()
            self._strategy.meet()
            begin(extent, self._progress, self._around.saver.directory, speaks=self.rank == 0)

    def _until_through(self) -> Iterator[Any]:
        progress, began = self._progress, -1
        self._link.script_waits()
        while not self._is_through():
            self._strategy.boundary()
            if self._is_through():  # the others were past its end
                return
            if began != progress.epoch or not progress.offset:
                began = progress.epoch
                self._strategy.begin_epoch()
            for batch in self._strategy.batches():
                self._link.script_goes_on()
                yield batch
                self._link.script_waits()

    def _is_through(self) -> bool:  # no attribute: mypy would take it for unchanged
        return self._position.through


def _strategy_of(model: torch.nn.Module, optimizer: Any, dataset: Any, around: Around) -> Strategy:
    """Stages where the model is declared so and the job asks for it, else copies; imported only now."""
    if _in_stages(model, around.options):
        from sublet.train.grid.in_stages import InStages

        return InStages(model, optimizer, dataset, around)
    from sublet.train.sessions.copies import Copies

    return Copies(model, optimizer, dataset, around)


def _in_stages(model: torch.nn.Module, options: Options) -> bool:
    """train.Stages are, a sequence where the job says so (`parallel.stages`)."""
    from sublet.train.grid.stages import Stages, is_staged

    if options.loss is None or not is_staged(model) or cue_here() is not None:  # a rehearsal is of copies
        return False
    return isinstance(model, Stages) or os.environ.get("SUBLET_STAGES", "1") != "1"

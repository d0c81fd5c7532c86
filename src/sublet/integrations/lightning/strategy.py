"""A strategy of Lightning that makes its steps in a session.

Lightning's loop stays. Its loader gives this worker's share of the next step, and the backward pass of a loss is
`s.step`: sum, clipping and update happen there. Its counters (epoch, batch, step) are set to the session's before each
batch, so a dropped step counts once, and training resumes where it was.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader

from sublet import train
from sublet.errors import InvalidValue
from sublet.integrations.lightning.fitness import check_loader, check_names, check_trainer
from sublet.train.sessions.loop import Session


class SubletStrategy(SingleDeviceStrategy):  # type: ignore[misc]  # its types are not read
    """`L.Trainer(strategy=SubletStrategy(global_batch=64))`: the samples of a step, over all workers."""

    strategy_name = "sublet"

    def __init__(self, global_batch: int, *, seed: int = 0, device: torch.device | str | None = None) -> None:
        super().__init__(device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.global_batch, self.seed = global_batch, seed
        self.session: Session | None = None
        self._feed: Feed | None = None
        self._hook: Any = None
        self._is_set_up = False  # there are optimizers
        rank_zero_only.rank = 0  # until we know better: Lightning may have seen the rank of the start

    # ------------------------------------------------------------------------------------- the rank of this worker

    @property
    def is_global_zero(self) -> bool:
        """Rank 0 of the session; every worker, before there is one."""
        return self.session is None or self.session.rank == 0

    def take_place(self) -> None:
        """Loggers and checkpoints are rank 0's, which may be another worker at each step."""
        if self.session is not None:
            self.global_rank = rank_zero_only.rank = self.session.rank

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002, ARG002, FBT001, FBT002 - Lightning's
        """Whether to stop, or to save: rank 0 decides, from its own figures."""
        if self.session is None:
            return decision
        return bool(self.session.told_by_rank_0([float(decision)])[0])

    # ----------------------------------------------------------------------------------------- from loader to step

    def setup(self, trainer: Any) -> None:
        """As Lightning's. A loader that was asked for to count steps in `configure_optimizers` is dropped."""
        super().setup(trainer)
        self._is_set_up = True
        if self._feed is not None and self.session is None:
            self._feed = trainer.fit_loop._combined_loader = None  # noqa: SLF001 - see fitness.NAMES; made again to train

    def process_dataloader(self, dataloader: object) -> object:
        """The loader of a training is the session's; it is opened here, before Lightning looks where training is."""
        trainer = self.lightning_module.trainer
        if not trainer.training:
            return dataloader
        if self.session is not None:
            raise InvalidValue("train_dataloaders", "a second one", "one, and one fit() for each job")
        check_names(trainer)
        if self._is_set_up:
            check_trainer(trainer, self.lightning_module)
        check_loader(dataloader, self.global_batch)
        self._feed = Feed(self, trainer, dataloader)
        if self._is_set_up:  # otherwise it is trainer.estimated_stepping_batches that asks
            self._open(trainer, self._feed)
        return self._feed

    def _open(self, trainer: Any, feed: Feed) -> None:
        steps = trainer.max_steps if trainer.max_steps > 0 else feed.per_epoch * trainer.max_epochs
        if trainer.max_steps > 0 and (trainer.max_epochs or -1) > 0:
            steps = min(steps, feed.per_epoch * trainer.max_epochs)
        configs, optimizer = trainer.lr_scheduler_configs, self.optimizers[0]
        module = self.lightning_module
        # Schedulers are stepped where the update is: a step that is dropped is none.
        module.__dict__["lr_scheduler_step"] = _nothing
        self._hook = optimizer.register_step_pre_hook(self._before_update)
        self.session = train.session(
            module,
            optimizer,
            feed.loader,
            global_batch=self.global_batch,
            steps=steps,
            seed=self.seed,
            probe=False,
            scheduler=[config.scheduler for config in configs] or None,
            scheduler_every=configs[0].interval if configs else "step",
            extra_state=CallbackStates(trainer),
        )
        self.session.__enter__()
        feed.begin(self.session)

    def _before_update(self, *_: Any) -> None:
        """After the sum: gradients are those of the global batch, the same in all workers."""
        self.precision_plugin._after_closure(self.lightning_module, self.optimizers[0])  # noqa: SLF001 - see fitness.NAMES

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ARG002 - Lightning's
        """The loss goes to the session, which updates the model."""
        if self.session is None:
            raise InvalidValue("backward", "a call", "made within fit()")
        self.pre_backward(closure_loss)
        loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        self.session.step(loss)
        if not self.session.updated and self._feed is not None:
            self._feed.give_again()
        found: torch.Tensor = self.precision_plugin.post_backward(loss, self.lightning_module)
        self.post_backward(found)
        return found

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:  # noqa: ARG002 - Lightning's
        """Run its closure."""
        loss = closure()
        if loss is None:
            raise InvalidValue("training_step", None, "a loss for every batch: all workers take part in every step")
        return loss

    # ----------------------------------------------------------------------------------------------- the end

    def on_train_end(self) -> None:
        """The last checkpoint, the last message."""
        self._close(None)

    def on_exception(self, exception: BaseException) -> None:
        """Training goes on elsewhere; a worker that is told to leave exits here too."""
        self._close(exception)

    def teardown(self) -> None:
        """For a training that was over before it began: Lightning calls no end of it."""
        self._close(None)
        super().teardown()

    def _close(self, error: BaseException | None) -> None:
        session = self.session
        if session is None or self._feed is None or self._feed.closed:
            return
        self._feed.closed = True
        self._hook.remove()
        self.lightning_module.__dict__.pop("lr_scheduler_step", None)
        session.__exit__(type(error) if error is not None else None, error, getattr(error, "__traceback__", None))
        self.take_place()


class Feed:
    """A loader for Lightning: the batches of the session, epoch by epoch."""

    def __init__(self, strategy: SubletStrategy, trainer: Any, loader: Any) -> None:
        self.loader: DataLoader[Any] = loader
        self._strategy, self._trainer = strategy, trainer
        samples, batch = len(loader.dataset), strategy.global_batch
        self.per_epoch = samples // batch if loader.drop_last else -(-samples // batch)
        self._session: Session | None = None
        self._epochs: Iterator[int] = iter(())
        self._batches: Iterator[Any] = iter(())
        self._epoch: int | None = None  # that is under way
        self.closed = False

    def __len__(self) -> int:
        return self.per_epoch

    def begin(self, session: Session) -> None:
        """Meet the others, and set Lightning to where training is."""
        self._session, self._epochs = session, session.epochs()
        self._turn_page(session)
        self._trainer.should_stop = self._epoch is None  # nothing is left, or a callback had ended it
        progress = self._trainer.fit_loop.epoch_progress
        for span in (progress.current, progress.total):
            span.ready = span.started = span.processed = span.completed = session.steps // self.per_epoch
        self._follow(session)

    def _turn_page(self, session: Session) -> None:
        """To the next epoch. What Lightning does after an epoch is done: it asks for the next one."""
        next(self._batches, None)  # nothing is left of the last; but Lightning does not ask beyond the last batch
        self._epoch = next(self._epochs, None)
        self._batches = iter(()) if self._epoch is None else session.batches()

    def __iter__(self) -> Iterator[Any]:
        session = self._session
        if session is None:
            return
        if self._epoch is not None and session.epoch > self._epoch:
            self._turn_page(session)
        for batch in self._batches:
            self._follow(session)
            yield batch

    def give_again(self) -> None:
        """The step was dropped, or has another micro-batch: set Lightning's counters back."""
        if self._session is not None:
            self._follow(self._session)
            loop, fetcher = self._trainer.fit_loop.epoch_loop, self._trainer.fit_loop._data_fetcher  # noqa: SLF001 - see fitness.NAMES
            loop.batch_progress.is_last_batch = fetcher.done = False
            loop._skip_next_val = True  # noqa: SLF001 - see fitness.NAMES

    def _follow(self, session: Session) -> None:
        """Lightning's counters, as they are before the step that comes."""
        self._strategy.take_place()
        at, loop = session.steps % self.per_epoch, self._trainer.fit_loop.epoch_loop
        batches, steps = loop.batch_progress, loop.automatic_optimization.optim_progress.optimizer.step
        for span, count in ((batches.current, at), (batches.total, session.steps)):
            span.ready = span.started = span.processed = span.completed = count
        steps.total.ready = steps.total.completed = session.steps
        loop._batches_that_stepped = session.steps  # noqa: SLF001 - see fitness.NAMES
        fetcher = self._trainer.fit_loop._data_fetcher  # noqa: SLF001 - see fitness.NAMES
        if fetcher is not None:
            fetcher.fetched = at


class CallbackStates:
    """The state of callbacks (early stopping, the best checkpoints), as bytes: they may keep tensors under any key."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The states of all callbacks that have one."""
        kept = {callback.state_key: callback.state_dict() for callback in self._trainer.callbacks}
        buffer = io.BytesIO()
        torch.save({key: state for key, state in kept.items() if state}, buffer)
        return {"callbacks": torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)}

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        """Counterpart of `state_dict`."""
        kept = torch.load(io.BytesIO(saved["callbacks"].cpu().numpy().tobytes()), weights_only=True)
        for callback in self._trainer.callbacks:
            if callback.state_key in kept:
                callback.load_state_dict(kept[callback.state_key])


def _nothing(*_: Any) -> None:
    """In place of the module's own step of a scheduler."""

"""The Trainer of transformers with a session in place of its innermost loop.

Everything around that loop is the Trainer's own: arguments, optimizer, scheduler, callbacks, logs, evaluation, and the
checkpoints of `save_strategy`. Differences:

    samples     the session's order and shares; TrainingArguments say the global batch
    losses      a mean over all labels of the global batch, as of one process
    evaluation  every worker evaluates all of it, and rank 0's figures count: all decide alike
    rank 0      may change; the new one calls `on_train_begin` again, for callbacks that prepare there

It is written against private methods of the Trainer, which are named in `fitness.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from numbers import Real
from typing import Any

import torch
import transformers
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from transformers.trainer_pt_utils import find_batch_size

from sublet import train
from sublet.errors import InvalidValue
from sublet.integrations.checks import require_map_style
from sublet.integrations.transformers.fitness import check_arguments, check_resume, check_versions
from sublet.integrations.transformers.kept import TrainerRecord
from sublet.train.sessions.loop import Session


class Trainer(transformers.Trainer):  # type: ignore[misc]  # its types are not read
    """`transformers.Trainer`, whose number of workers may change at any step; it resumes by itself."""

    control: Any  # callbacks give a new one after every event

    def __init__(self, *positional: Any, **named: Any) -> None:
        check_versions()
        args = named.get("args", positional[1] if len(positional) > 1 else None)
        if args is not None:
            check_arguments(args)
        self._session: Session | None = None
        self._begun = False  # on_train_begin was called
        self._together = False  # all workers are in the same evaluation
        self._counted: torch.Tensor | None = None  # what the loss under way is a mean over
        self._rate: float | None = None  # by which the last update was made
        super().__init__(*positional, **named)
        check_arguments(self.args)

    # ------------------------------------------------------------------------------- what the Trainer asks for

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, **more: Any) -> Any:
        """As the Trainer's; it resumes by itself."""
        check_resume(resume_from_checkpoint)
        if trial is not None:
            raise InvalidValue("trial", trial, "left out: submit each trial as a job of its own")
        return super().train(None, None, **more)

    def create_accelerator_and_postprocess(self) -> None:
        """As the Trainer's, with a backward that gives the loss to the session."""
        super().create_accelerator_and_postprocess()
        self.accelerator.backward = self._backward

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """As the Trainer's, for the optimizer without accelerate's wrapper, which takes no step."""
        return super().create_scheduler(num_training_steps, optimizer or bare(self.optimizer))

    def evaluation_loop(self, *positional: Any, **named: Any) -> Any:
        """As the Trainer's, in every worker; where all of them evaluate, rank 0's figures count."""
        output = super().evaluation_loop(*positional, **named)
        if self._together and self._session is not None and output.metrics:
            names = sorted(name for name, value in output.metrics.items() if isinstance(value, Real))
            found = self._session.told_by_rank_0([float(output.metrics[name]) for name in names])
            output.metrics.update(zip(names, found, strict=True))
        return output

    # ------------------------------------------------------------------------------------------- the loop

    def _inner_training_loop(
        self,
        batch_size: int | None = None,  # noqa: ARG002 - the arguments say it
        args: Any = None,
        resume_from_checkpoint: str | None = None,  # noqa: ARG002 - see train
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        started_s = time.time()
        self.accelerator.free_memory()
        loader = self.get_train_dataloader()
        epochs, per_epoch, _, samples, batch, in_epoch, max_steps = self.set_initial_training_values(args, loader)
        self._init_training_state(max_steps, per_epoch, epochs, None, trial)
        model, loader = self._prepare_for_training(max_steps, loader, None)
        self._tr_loss = torch.tensor(0.0, device=args.device)
        self._total_loss_scalar, self._globalstep_last_logged, self._begun = 0.0, 0, False
        self._later = (model, trial, ignore_keys_for_eval, started_s)
        self._shape = (per_epoch, in_epoch)
        with train.session(
            self.model,
            bare(self.optimizer),
            plain(loader, args.gradient_accumulation_steps),
            global_batch=batch,
            micro_batch=self._train_batch_size,
            steps=max_steps,
            scheduler=self.lr_scheduler,
            seed=args.seed if args.data_seed is None else args.data_seed,
            probe=False,
            reduction="counted" if self._counts else "mean",
            scaler=self.accelerator.scaler,
            clip_norm=args.max_grad_norm or None,
            extra_state=TrainerRecord(self),
        ) as session:
            self._session = session
            hooks = [
                bare(self.optimizer).register_step_pre_hook(self._before_update),
                bare(self.optimizer).register_step_post_hook(self._after_update),
            ]
            for epoch in self._epochs(session):
                self._train_epoch(session, model, epoch)
                if self.control.should_training_stop:
                    break
            for hook in hooks:
                hook.remove()
        self._take_place(session)
        self._spread_loss()
        return self._finalize_training(trial, samples, started_s)

    def _epochs(self, session: Session) -> Iterator[int]:
        """The epochs that are left; before the first, `on_train_begin` and the like."""
        epochs = session.epochs()
        epoch = next(epochs, None)
        self._take_place(session)
        self._initial_global_step, self._initial_num_input_tokens_seen = (
            self.state.global_step,
            self.state.num_input_tokens_seen,
        )
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        self._begun = True
        if self.args.eval_on_start and not session.steps:
            self._evaluate(self._later[1], self._later[2], skip_scheduler=True)
        while epoch is not None:
            yield epoch
            epoch = next(epochs, None)

    def _train_epoch(self, session: Session, model: torch.nn.Module, epoch: int) -> None:
        self._take_place(session)
        self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)
        fresh = True
        for inputs in session:
            self._take_place(session)
            if fresh:
                self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
            self._train_on(session, model, inputs)
            fresh = session.updated
            if fresh:
                self._end_steps(session, epoch)
            else:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
            if self.control.should_training_stop:
                break
            if self.control.should_epoch_stop:
                raise InvalidValue(
                    "should_epoch_stop", "True", "False: an epoch is trained to its end; should_training_stop is heard"
                )
        self._take_place(session)
        self._end_steps(session, epoch)
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        self._log_save_evaluate(session, epoch)

    def _train_on(self, session: Session, model: torch.nn.Module, inputs: Any) -> None:
        """One micro-batch, as in the Trainer, with the session's backward."""
        self.current_gradient_accumulation_steps = 1
        items, self._counted = None, None
        if self._counts:
            items = self._get_num_items_in_batch([inputs], self.args.device)
            by_items = items is not None and self.loss_is_scaled_for_ga is not False
            counted = items if by_items else find_batch_size(inputs)
            self._counted = torch.as_tensor(counted, device=self.args.device)
        # Labels may be missing from all of a micro-batch: then its loss is nothing, and not nothing over nothing.
        given = None if items is None else items.clamp(min=1)
        seen = self.state.num_input_tokens_seen
        self.training_step(model, inputs, given)
        self._track_num_input_tokens(inputs)
        self.state.num_input_tokens_seen = seen + (self.state.num_input_tokens_seen - seen) * session.world
        self.current_flos += float(self.floating_point_ops(inputs)) * session.world  # the others do as much

    def _backward(self, loss: torch.Tensor, **_: Any) -> None:
        if self._session is None:
            raise InvalidValue("accelerator.backward()", "a call", "left to train()")
        if self._counted is None:
            self._session.step(loss)
        else:
            self._session.step(loss * self._counted.clamp(min=1), counted=self._counted)

    @property
    def _counts(self) -> bool:
        """Whether losses are means over labels, of which samples have more or fewer."""
        return bool(self.model_accepts_loss_kwargs) or self.compute_loss_func is not None

    def _before_update(self, *_: Any) -> None:
        self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)

    def _after_update(self, *_: Any) -> None:
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        self._rate = self._get_learning_rate()  # the session steps the scheduler next

    def _end_steps(self, session: Session, epoch: int) -> None:
        """Callbacks and logs after a step; late in a worker without samples in the last step of an epoch."""
        per_epoch, in_epoch = self._shape
        while self.state.global_step < session.steps:
            state, loss = self.state, session.loss_tensor
            if self.args.logging_nan_inf_filter and not torch.isfinite(loss):
                loss = self._tr_loss / (1 + state.global_step - self._globalstep_last_logged)
            self._tr_loss += loss
            over, step = divmod(state.global_step, per_epoch)
            trained = min((step + 1) * self.args.gradient_accumulation_steps, in_epoch)
            state.global_step += 1
            state.epoch = over + trained / in_epoch
            self.control = self.callback_handler.on_step_end(self.args, state, self.control)
            self._log_save_evaluate(session, epoch)

    def _log_save_evaluate(self, session: Session, epoch: int) -> None:
        model, trial, ignored, started_s = self._later
        self._together = True
        try:
            self._maybe_log_save_evaluate(
                self._tr_loss, session.grad_norm, model, trial, epoch, ignored, started_s, learning_rate=self._rate
            )
        finally:
            self._together = False

    # --------------------------------------------------------------------------------- the rank of this worker

    def _take_place(self, session: Session) -> None:
        """Rank 0 writes and prints: update all states that accelerate and callbacks ask for the rank."""
        for state in (self.args.distributed_state, self.accelerator.state):
            state.process_index = state.local_process_index = session.rank
        is_first = session.rank == 0
        becomes_first = is_first and not self.state.is_world_process_zero
        self.state.is_world_process_zero = self.state.is_local_process_zero = is_first
        if becomes_first and self._begun:
            self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)

    def _spread_loss(self) -> None:
        """Let `train_loss` be of all steps: the Trainer divides by those of this start."""
        rest, steps = float(self._tr_loss), self.state.global_step
        own = max(steps - self._initial_global_step, 0.001)  # as it has it
        self._total_loss_scalar = (self._total_loss_scalar + rest) * own / max(steps, 0.001) - rest

    def losses(self) -> tuple[float, int, float]:
        """The loss since the last log, the step of that, and the sum of all losses before it."""
        return float(self._tr_loss), int(self._globalstep_last_logged), float(self._total_loss_scalar)

    def restore_losses(self, loss: float, step: int, before: float) -> None:
        """Counterpart of `losses`."""
        self._tr_loss.fill_(loss)
        self._globalstep_last_logged, self._total_loss_scalar = step, before


def bare(optimizer: Any) -> Any:
    """The optimizer itself, without what accelerate wraps around it."""
    return getattr(optimizer, "optimizer", optimizer)


def plain(loader: Any, accumulated: int) -> DataLoader[Any]:
    """The loader without accelerate's wrappers: the session decides which samples come, and where they go."""
    loader = getattr(loader, "base_dataloader", loader)
    require_map_style("train_dataset", getattr(loader, "dataset", None))
    batches = getattr(loader, "batch_sampler", None)
    if not isinstance(batches, BatchSampler):
        return loader  # type: ignore[no-any-return]  # the session says what it does not take
    order: Any = batches.sampler
    if batches.drop_last and len(order) // batches.batch_size % accumulated:
        raise InvalidValue(
            "dataloader_drop_last",
            f"True, {len(order) // batches.batch_size} batches in an epoch",
            f"False, or a number of batches that gradient_accumulation_steps={accumulated} divides",
        )
    if isinstance(order, RandomSampler) and not order.replacement and order.num_samples == len(loader.dataset):
        order = RandomSampler(loader.dataset)  # accelerate's own is one with a seed, and the session has one too
    elif isinstance(order, SequentialSampler):
        order = SequentialSampler(loader.dataset)
    return DataLoader(
        loader.dataset,
        batch_size=batches.batch_size,
        sampler=order,
        drop_last=batches.drop_last,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )

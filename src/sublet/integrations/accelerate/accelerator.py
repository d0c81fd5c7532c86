"""accelerate's Accelerator for one process, with a session that knows the others.

prepare     the first DataLoader is the training's; others are for evaluation, and every worker sees all of them
keep        values that the script counts, as part of the state
epochs      opens the session, and gives the epochs that are left
backward    keeps the loss; `optimizer.step()` is `s.step(loss)` (`prepared.py`)
collectives gather, reduce and barriers have one member: every worker evaluates all
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import accelerate
import torch
from torch.utils.data import DataLoader

from sublet import train
from sublet.errors import InvalidValue
from sublet.integrations.accelerate.prepared import (
    Batches,
    Optimizer,
    Registered,
    Remembered,
    Scheduler,
    uneven_step,
)
from sublet.integrations.checks import require_map_style
from sublet.train.sessions.loop import Session

TESTED = ">=1.15,<2"  # as in pyproject.toml
NAMES = ("_models", "_optimizers", "_schedulers", "_custom_objects")  # lists, which save_state reads
REFUSED = ("fsdp_plugin", "deepspeed_plugin", "megatron_lm_plugin", "parallelism_config", "deepspeed_plugins")


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # its types are not read
    """`accelerate.Accelerator`, whose number of workers may change at any step; it resumes by itself.

    `scheduler_every` says where the script calls `scheduler.step()`: after every "step", or every "epoch".
    """

    def __init__(self, *args: Any, scheduler_every: str = "step", seed: int = 0, **named: Any) -> None:
        for name in REFUSED:
            if named.get(name) is not None:
                raise InvalidValue(name, type(named[name]).__name__, "left out: every worker holds the whole model")
        self._session: Session | None = None
        self._batches: Batches | None = None
        self._remembered: Remembered | None = None
        self._every, self._seed = scheduler_every, seed
        self._loss: torch.Tensor | None = None  # that waits for optimizer.step()
        self._clips: dict[str, tuple[Any, float, float]] = {}
        self._norm = torch.zeros(())
        self._within = False  # the batches of an epoch
        self._noted: set[int] = set()  # schedulers that the script has stepped since they were due
        self._is_open = False
        self._handled: BaseException | None = None  # what the script was about to handle when training began
        super().__init__(*args, **named)
        missing = [name for name in NAMES if not isinstance(getattr(self, name, None), list)]
        if missing:
            raise InvalidValue("accelerate", f"{version('accelerate')}, without {missing}", f"a version {TESTED}")

    # ------------------------------------------------------------------------------------------------ prepare

    def prepare_data_loader(self, data_loader: Any, *args: Any, **named: Any) -> Any:
        """The first is the training's."""
        if isinstance(data_loader, Batches) or data_loader is self._batches:
            return data_loader
        if self._batches is None and isinstance(data_loader, DataLoader):
            self._batches = Batches(self, data_loader)
            return self._batches
        return super().prepare_data_loader(data_loader, *args, **named)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:  # noqa: FBT001 - accelerate's
        """One optimizer; its step is the session's."""
        if self._optimizers:
            raise InvalidValue("optimizer", "a second one", "one: for several write the loop with train.session")
        placed = self.device_placement if device_placement is None else device_placement
        self._optimizers.append(Optimizer(self, optimizer, device_placement=placed))
        optimizer.register_step_pre_hook(self._clip)
        return self._optimizers[0]

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Stepped after every step by the session, or after every epoch by the script."""
        if self._every == "epoch" and all(scheduler.optimizer is not each.optimizer for each in self._optimizers):
            raise InvalidValue("scheduler", "of another optimizer", "of the optimizer itself, made before prepare()")
        self._schedulers.append(Scheduler(self, scheduler, self._optimizers))
        return self._schedulers[-1]

    # ------------------------------------------------------------------------------------------------ the loop

    def keep(self, **values: Any) -> Remembered:
        """Values that are part of the state, with what they are at first: `kept = accelerator.keep(completed=0)`.

        As `s.keep` of a session. It is called once, before `accelerator.epochs()`.
        """
        if self._session is not None or self._remembered is not None or not values:
            raise InvalidValue("accelerator.keep()", "a call", "called once, before accelerator.epochs(), with values")
        self._remembered = Remembered(values)
        return self._remembered

    def epochs(self, count: int) -> Iterator[int]:
        """In place of `range(count)`: the epochs that are left, from the one that training is in."""
        if self._batches is None or not self._optimizers:
            raise InvalidValue("epochs()", "a call", "after accelerator.prepare(model, optimizer, loader)")
        loader, optimizer = self._batches.loader, self._optimizers[0].optimizer
        require_map_style("loader", loader.dataset)
        owned = {id(each) for group in optimizer.param_groups for each in group["params"]}
        models = [model for model in self._models if any(id(each) in owned for each in model.parameters())]
        if len(models) != 1:
            raise InvalidValue("model", f"{len(models)} with parameters of the optimizer", "one")
        session = train.session(
            self.unwrap_model(models[0]),
            optimizer,
            loader,
            epochs=count,
            global_batch=(loader.batch_size or 1) * self.gradient_accumulation_steps,
            micro_batch=loader.batch_size,
            scheduler=[each.scheduler for each in self._schedulers] if self._every == "step" else None,
            seed=self._seed,
            probe=False,
            scaler=self.scaler,
            device=self.device,
            extra_state=Registered(self._custom_objects) if self._custom_objects else None,
        )
        self._session, self._is_open, self._handled = session.__enter__(), True, sys.exc_info()[1]
        steps_itself = self._schedulers if self._every == "epoch" else []
        known = {f"scheduler {number}": each.scheduler for number, each in enumerate(steps_itself)}
        if self._remembered is not None:
            self._remembered.open(self._session, known)
        elif known:
            self._session.keep(**known)
        if self._session.rank == 0 and (uneven := uneven_step(loader, self.gradient_accumulation_steps)):
            print(f"sublet: {uneven}", file=sys.stderr)  # noqa: T201 - to the user, in the user's process
        with self._ended_by_errors():
            for epoch in session.epochs():
                self._take_place()
                yield epoch
                self._require_noted("epoch")
        self.finish()

    def finish(self) -> None:
        """End training. `epochs` does it; a script that breaks out of its loop calls it, or `end_training`."""
        if self._session is not None and self._is_open:
            self._is_open = False
            error = sys.exc_info()[1]  # of a script that ends its training in a `finally`
            if error is None or error is self._handled:
                self._session.__exit__(None, None, None)
            else:
                self._session.__exit__(type(error), error, error.__traceback__)
            self._take_place()

    def end_training(self) -> None:
        """As accelerate's; and training has ended."""
        self.finish()
        super().end_training()

    def given(self) -> Iterator[Any]:
        """The micro-batches of this worker in the epoch under way."""
        session = self._session
        if session is None or not self._is_open:
            raise InvalidValue("loader", "a loop over it", "within `for epoch in accelerator.epochs(N):`")
        self._within = True
        with self._ended_by_errors():
            for batch in session:
                self._take_place()
                yield batch
                if self._loss is not None:
                    raise InvalidValue(
                        "optimizer.step()",
                        "no call",
                        "called after every accelerator.backward(loss); to accumulate say gradient_accumulation_steps",
                    )
                if session.updated:
                    self._require_noted("step")
        self._within = False
        self._take_place()

    def backward(self, loss: torch.Tensor, **_: Any) -> None:
        """Kept for `optimizer.step()`; the mean over the micro-batch, as always."""
        if self._loss is not None or not self._within:
            raise InvalidValue("accelerator.backward()", "a call", "called once for each batch of the prepared loader")
        self._loss = loss

    def make_step(self) -> None:
        """The script's `optimizer.step()`."""
        if self._loss is None or self._session is None:
            raise InvalidValue("optimizer.step()", "a call", "called once after each accelerator.backward(loss)")
        loss, self._loss = self._loss, None
        self._session.step(loss)
        self._clips.clear()

    def note_scheduler(self, scheduler: Scheduler) -> None:
        """The script has stepped it: InvalidValue if at another place than the session does."""
        if self._within is not (self._every == "step"):
            place = "between batches" if self._within else "after an epoch"
            other = "epoch" if self._every == "step" else "step"
            raise InvalidValue("scheduler.step()", f"a call {place}", f"said: Accelerator(scheduler_every='{other}')")
        self._noted.add(id(scheduler))
        if self._every == "epoch":  # which the session keeps: where all ranks are between two epochs
            scheduler.scheduler.step()

    def _require_noted(self, every: str) -> None:
        if every == self._every and len(self._noted) < len(self._schedulers):
            raise InvalidValue(
                "scheduler.step()", f"no call in this {every}", "called once: the session steps what was prepared"
            )
        if every == self._every:
            self._noted.clear()

    @contextlib.contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        try:
            yield
        except GeneratorExit:  # the script has left its loop, for a reason that we do not know: see finish
            raise
        except BaseException as error:
            if self._session is not None and self._is_open:
                self._is_open = False
                self._session.__exit__(type(error), error, error.__traceback__)
            raise

    # ----------------------------------------------------------------------------------- gradients and places

    @property
    def sync_gradients(self) -> bool:
        """Before `optimizer.step()` whether it will update the model; after it, whether it has."""
        session = self._session
        if session is None or not self._within:
            return True
        return session.gives_last if self._loss is not None else session.updated

    @sync_gradients.setter
    def sync_gradients(self, sync_gradients: bool) -> None:
        self.gradient_state.sync_gradients = sync_gradients

    @contextlib.contextmanager
    def accumulate(self, *_: Any) -> Iterator[None]:
        """Nothing: the session knows how many micro-batches a step has."""
        yield

    @contextlib.contextmanager
    def no_sync(self, _: Any) -> Iterator[None]:
        """Nothing, as `accumulate`."""
        yield

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """At the update, after the sum over all workers; returns the norm of the step before."""
        self._clips["norm"] = (list(parameters), float(max_norm), float(norm_type))
        return self._norm

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """At the update, after the sum over all workers."""
        self._clips["value"] = (list(parameters), float(clip_value), 0.0)

    def _clip(self, *_: Any) -> None:
        if "norm" in self._clips:
            parameters, most, kind = self._clips["norm"]
            self._norm = torch.nn.utils.clip_grad_norm_(parameters, most, norm_type=kind)
        if "value" in self._clips:
            parameters, most, _kind = self._clips["value"]
            torch.nn.utils.clip_grad_value_(parameters, most)

    def _take_place(self) -> None:
        """`is_main_process` is rank 0, which may be another worker at each step."""
        if self._session is not None:
            for state in (accelerate.PartialState(), self.state):
                state.process_index = state.local_process_index = self._session.rank

    def save_state(self, *args: Any, **named: Any) -> Any:
        """By rank 0, for the script's own use; Sublet resumes without it."""
        return super().save_state(*args, **named) if self.is_main_process else None

    def load_state(self, input_dir: Any = None, *_: Any, **__: Any) -> None:
        """Refused: training goes on where it was by itself."""
        raise InvalidValue(
            "load_state", input_dir, "left out: training goes on where it was; load weights into the model to begin"
        )

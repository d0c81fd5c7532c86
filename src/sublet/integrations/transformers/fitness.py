"""Checks of arguments and of transformers itself, before anything is trained with the elastic Trainer.

Private names may change in any release. They are listed here and compared before training, so that another version is
refused with the name that changed, and never trains something else.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import transformers
from transformers.trainer_utils import SchedulerType

from sublet.errors import InvalidValue

TESTED = ">=5.23,<6"  # as in pyproject.toml
Methods = Mapping[str, tuple[str, ...]]  # the parameters that each is called with
METHODS: Methods = {
    "_inner_training_loop": ("batch_size", "args", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
    "set_initial_training_values": ("args", "dataloader"),
    "_init_training_state": (
        "max_steps",
        "num_update_steps_per_epoch",
        "num_train_epochs",
        "resume_from_checkpoint",
        "trial",
    ),
    "_prepare_for_training": ("max_steps", "train_dataloader", "resume_from_checkpoint"),
    "_maybe_log_save_evaluate": (
        "tr_loss",
        "grad_norm",
        "model",
        "trial",
        "epoch",
        "ignore_keys_for_eval",
        "start_time",
        "learning_rate",
    ),
    "_finalize_training": ("trial", "num_train_samples", "start_time"),
    "_evaluate": ("trial", "ignore_keys_for_eval", "skip_scheduler"),
    "_get_num_items_in_batch": ("batch_samples", "device"),
    "_get_learning_rate": (),
    "_track_num_input_tokens": ("inputs",),
    "training_step": ("model", "inputs", "num_items_in_batch"),
    "evaluation_loop": (),
    "create_scheduler": ("num_training_steps", "optimizer"),
    "create_accelerator_and_postprocess": (),
}
ATTRIBUTES = (  # of a Trainer, which it makes in its own loop and reads in the methods above
    "_tr_loss",
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_num_input_tokens_seen",
    "_initial_global_step",
    "_train_batch_size",
    "current_gradient_accumulation_steps",
    "current_flos",
    "loss_is_scaled_for_ga",
    "model_accepts_loss_kwargs",
)


def moved(owner: type, methods: Methods) -> list[str]:
    """Names or parameters that no longer exist."""
    found = []
    for name, parameters in methods.items():
        method = getattr(owner, name, None)
        if method is None:
            found.append(f"{owner.__name__}.{name}")
            continue
        takes = inspect.signature(method).parameters
        found += [f"{owner.__name__}.{name}({each})" for each in parameters if each not in takes]
    return found


def require_as_pinned(package: str, tested: str, owner: type, methods: Methods) -> None:
    """InvalidValue that names them; `tested` are the versions that all of it was tested with."""
    gone = moved(owner, methods)
    if gone:
        raise InvalidValue(package, f"{version(package)}, without {', '.join(gone)}", f"a version {tested}")


def check_versions() -> None:
    """InvalidValue if the Trainer has changed inside."""
    require_as_pinned("transformers", TESTED, transformers.Trainer, METHODS)


def check_arguments(args: transformers.TrainingArguments) -> None:
    """InvalidValue for options that divide the model or change the batch."""
    _refuse("fsdp", args.fsdp, "left out: every worker holds the whole model")
    _refuse("deepspeed", args.deepspeed, "left out: every worker holds the whole model")
    _refuse("parallelism_config", args.parallelism_config, "left out: workers share the samples, not the model")
    _refuse(
        "auto_find_batch_size",
        args.auto_find_batch_size,
        "False: samples that do not fit are taken fewer at a time by themselves, with the same global batch",
    )
    _refuse("enable_jit_checkpoint", args.enable_jit_checkpoint, "False: Sublet saves when a node is to be taken")
    if args.n_gpu > 1:
        raise InvalidValue("n_gpu", args.n_gpu, "1: one GPU for each process; set CUDA_VISIBLE_DEVICES=0 to try alone")
    if args.train_sampling_strategy not in ("random", "sequential"):
        raise InvalidValue(
            "train_sampling_strategy",
            args.train_sampling_strategy,
            "'random' or 'sequential': every sample is seen once per epoch",
        )
    if args.lr_scheduler_type in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY):
        raise InvalidValue(
            "lr_scheduler_type", args.lr_scheduler_type.value, "one that follows from the step, such as 'cosine'"
        )


def check_resume(given: Any) -> None:
    """InvalidValue if training is to begin where the session does not."""
    if given is None or given is False:
        return
    if given is not True:
        raise InvalidValue(
            "resume_from_checkpoint",
            given,
            "left out: training goes on where it was by itself; to begin with these weights, load them: "
            "from_pretrained(PATH)",
        )
    if "SUBLET_CONTROL_FD" not in os.environ and "SUBLET_CHECKPOINT_DIR" not in os.environ:
        raise InvalidValue(
            "resume_from_checkpoint", given, "said with SUBLET_CHECKPOINT_DIR set: that is where training is kept"
        )


def _refuse(field: str, value: Any, allowed: str) -> None:
    if value:
        raise InvalidValue(field, value, allowed)

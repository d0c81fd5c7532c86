"""The SDK in the user's process: elastic training that survives the loss of workers.

    from sublet import train

    with train.session(model, optimizer, dataset, global_batch=512, epochs=10) as s:
        for epoch in s.epochs():                # begins where training is
            for batch in s:                     # resizes, checkpoints and resumes happen here
                s.step(loss_fn(model, batch))

Under a controller the same loop runs in as many processes as the job has workers. Alone it is plain PyTorch. Torch is
imported when a session is made, not before.

In the order in which to read them (file by file: docs/architecture/session.md, "Reading order"):

sessions    the loop of a script, and the strategies by which workers train: begin with `loop`, then `copies`
numerics    from a loss to an update: gradients, noise, rates, random numbers, memory
link        connections to the agent and to the other workers
state       the content of a checkpoint
checkpoint  when, how and where it is written
data        which samples a step takes; a dataset that is fetched from a bucket
streams     datasets that are read in order, by virtual shards
grid        stages in copies
shards      an optimizer's state in ranges
sharded     models that fully_shard has cut, in a loop of their own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sublet.wire.messages import EXIT_LEFT, EXIT_LOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

    from sublet.train.checkpoint.restarted import Restarted
    from sublet.train.data.loading import Draws
    from sublet.train.data.stored.dataset import Stored
    from sublet.train.grid.stages import Stages
    from sublet.train.sessions.loop import Session

__all__ = ["EXIT_LEFT", "EXIT_LOST", "Stages", "checkpointed", "dataset", "drawn", "session", "stages"]


def __getattr__(name: str) -> Any:
    """Names whose modules import torch."""
    if name == "Stages":
        from sublet.train.grid.stages import Stages

        return Stages
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def session(model: Any, optimizer: Any, dataset: Any, *, global_batch: int | None = None, **more: Any) -> Session:
    """A training run whose number of workers may change at any step; use it in a `with` statement.

    Args:
        model: the bare module, or several by name; your code calls it, unless there is `loss=`.
        optimizer: of the parameters of `model`, or several by name; the session calls its `step`, you do not.
        dataset: map-style (`__len__` and `__getitem__`), or a DataLoader of one, whose workers then load the batches.
            Every sample is seen once per epoch. Or a stream (IterableDataset, or a DataLoader of one) with `steps=N`:
            each of its samples is read once.
        global_batch: samples per optimizer step, over all workers; a DataLoader's `batch_size` if it is not given.
        **more: see `sublet.train.sessions.options.Options`: epochs, steps, scheduler, scheduler_every, seed, loss,
            probe, strict, micro_batch, batch_range, lr_rule, reduction, scaler, clip_norm, clip_value, collate, shards,
            extra_state, device, tracker, checkpoint_dir.
    """
    from sublet.train.data.loading import batch_of
    from sublet.train.sessions.options import Options

    batch = batch_of(dataset) if global_batch is None else global_batch
    if batch is None:
        raise TypeError("session() needs global_batch, the samples per optimizer step over all workers")
    options = Options(global_batch=batch, **more)
    from sublet.train.sessions.loop import Session

    return Session(model, optimizer, dataset, options)


def stages(model: nn.Module) -> Stages:
    """The modules of a common model of transformers (GPT-2, Llama, BERT) as train.Stages, which give logits."""
    from sublet.train.grid.families import stages as found

    return found(model)


def dataset(
    uri: str,
    *,
    each: str,
    record_bytes: int | None = None,
    decode: Callable[[bytes], Any] | None = None,
    suffix: str = "",
    window: int = 1024,
    shuffle: bool = True,
    seed: int = 0,
) -> Stored:
    """A stream of the samples under a URI, for a session or a DataLoader: `train.session(..., steps=N)`.

    Args:
        uri: s3://bucket/prefix, gs://..., az://..., file:///a/folder, a path or ~/a/path; listed once, now.
        each: what a sample is: a "record" of `record_bytes` bytes, a "line" without its end, or a "file".
        record_bytes: of a record; all objects have whole ones.
        decode: makes a sample of its bytes; without it the bytes are the sample.
        suffix: only objects whose names end so.
        window: samples that are shuffled among each other, in each shard; blocks of about a megabyte come in random
            order, and whole files do.
        shuffle: False = in the order of the names.
        seed: of both.
    """
    from sublet.train.data.stored.dataset import Stored

    return Stored(
        uri, each, record_bytes=record_bytes, decode=decode, suffix=suffix, window=window, shuffle=shuffle, seed=seed
    )


def drawn(function: Callable[[], Any]) -> Draws:
    """Batches that a function draws at random, for `train.session(..., steps=N)`: the same at any number of workers.

    Args:
        function: gives one batch (a tensor, or a tuple, list or dict of them) of as many rows each time, by the global
            random numbers of torch, Python and NumPy. A step of the session has as many rows as one call gives, unless
            `global_batch=` says another number.
    """
    from sublet.train.data.loading import Draws

    return Draws(function)


def checkpointed(*, steps: int | None = None, directory: Path | str | None = None, **parts: Any) -> Restarted:
    """Checkpoints for a loop of the script's own: `ck.resume()` before it, `ck.tick(step)` after every step.

    Args:
        steps: ticks of the whole training; without it the remaining work is unknown to the controller.
        directory: None = $SUBLET_CHECKPOINT_DIR, and nothing is saved without it.
        **parts: the state of the training, each part with `state_dict` and `load_state_dict`. A model that
            `fully_shard` has cut, and its optimizer, are saved by all ranks.
    """
    from sublet.train.checkpoint.restarted import Restarted

    return Restarted(parts, directory, steps)

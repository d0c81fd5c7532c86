"""The SDK in the user's process: training that is elastic and survives.

    from sublet import train

    with train.session(model, optimizer, dataset, global_batch=512, epochs=10) as s:
        for epoch in s.epochs():                # begins where training is
            for batch in s:                     # resizes, checkpoints and resumes happen here
                s.step(loss_fn(model, batch))

Under a controller the same loop runs in as many processes as the job has workers. Alone it is plain PyTorch. Torch is
imported when a session is made, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from sublet.train.blocks import Blocks
from sublet.wire.exits import EXIT_LEFT, EXIT_LOST

if TYPE_CHECKING:
    from sublet.train.grid.session import GridSession
    from sublet.train.loop import Session

__all__ = ["EXIT_LEFT", "EXIT_LOST", "Blocks", "session"]


@overload
def session(
    model: Any, optimizer: Any, dataset: Any, *, global_batch: int | None = None, parts: None = None, **more: Any
) -> Session: ...


@overload
def session(
    model: Any, optimizer: Any, dataset: Any, *, global_batch: int | None = None, parts: Blocks, **more: Any
) -> GridSession: ...


def session(
    model: Any,
    optimizer: Any,
    dataset: Any,
    *,
    global_batch: int | None = None,
    parts: Blocks | None = None,
    **more: Any,
) -> Session | GridSession:
    """A training run that may change its width at any step; use it in a `with` statement.

    Args:
        model: the bare module; it is called by your code, not by the session.
        optimizer: of the parameters of `model`; the session calls its `step`, you do not.
        dataset: map-style (`__len__` and `__getitem__`), or a DataLoader of one, whose workers then load the batches;
            every sample is seen once per epoch at any width.
        global_batch: samples per optimizer step, over all workers; a DataLoader's `batch_size` if it is not given.
        parts: where the model may be cut, as train.Blocks("transformer.h"), the name of its list of blocks: workers
            then hold a part each, and `s.step(loss_of, batch)` is given the function instead of the loss.
        **more: see `sublet.train.options.Options`: epochs, scheduler, seed, micro_batch, batch_range, lr_rule,
            clip_norm, collate, extra_state, device, checkpoint_dir.
    """
    from sublet.train.loading import batch_of
    from sublet.train.options import Options

    batch = batch_of(dataset) if global_batch is None else global_batch
    if batch is None:
        raise TypeError("session() needs global_batch, the samples per optimizer step over all workers")
    options = Options(global_batch=batch, parts=parts, **more)
    if parts is not None:
        from sublet.train.grid.session import GridSession

        return GridSession(model, optimizer, dataset, options)
    from sublet.train.loop import Session

    return Session(model, optimizer, dataset, options)

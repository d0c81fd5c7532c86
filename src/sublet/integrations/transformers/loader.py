"""The loader of a Trainer as a session takes it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from sublet.errors import InvalidValue
from sublet.integrations.data import require_map_style

__all__ = ["plain"]


def plain(loader: Any, accumulated: int) -> DataLoader[Any]:
    """Without accelerate's wrappers: the session decides which samples come, and where they go."""
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

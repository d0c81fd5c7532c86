"""Checks of data that all integrations share."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from sublet.errors import InvalidValue

__all__ = ["require_map_style"]


def require_map_style(field: str, dataset: Any) -> None:
    """InvalidValue for a stream: frameworks count the batches of an epoch, and a stream has none that are known."""
    if isinstance(dataset, IterableDataset):
        raise InvalidValue(
            field,
            f"{type(dataset).__name__}, a stream",
            "a map-style dataset, with __len__ and __getitem__; for a stream write the loop with train.session",
        )

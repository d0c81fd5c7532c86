"""Torch's own encoder, in the same way in all parts.

Where nothing is trained, `nn.TransformerEncoder` may leave out the padding: it looks at its first layer, hands all of
them a nested tensor, and fills up with zeros after the last (the fast path of `torch.backends.mha`). Layers of which
the first is a part's and the last another's cannot: what goes from one to the next is a plain tensor.
"""

from __future__ import annotations

import torch

__all__ = ["PlainAttention"]


class PlainAttention:
    """While a session is open, also where it is alone: an evaluation comes to the same in any grid."""

    def __init__(self) -> None:
        self._before: bool | None = None

    def begin(self) -> None:
        """From now on."""
        self._before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)

    def end(self) -> None:
        """As it was."""
        if self._before is not None:
            torch.backends.mha.set_fastpath_enabled(self._before)

"""Coupled allocations as tests draw them: units by pool, job and choice."""

from __future__ import annotations

import numpy as np

from sublet.solve.mip.problem import Coupled

__all__ = ["by_use"]


def by_use(gain_JC, limits, use_PJC):
    """Each choice may use all pools."""
    use_PJC = np.asarray(use_PJC)
    pool_PJC = np.broadcast_to(np.arange(len(use_PJC))[:, None, None], use_PJC.shape)
    return Coupled.from_rows(gain_JC, limits, pool_PJC, use_PJC)

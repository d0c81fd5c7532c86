"""Polynomials that count ways, many at once and cut off at a degree: binomials, products, powers.

All coefficients are positive, so floating point loses nothing.

>>> powers(binomials(np.array([1]), 3), np.array([3])).tolist()  # (1 + x)^3
[[1.0, 3.0, 3.0, 1.0]]
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from sublet.solve.arrays import Floats, Ints

# R polynomials, K coefficients of x^0, x^1 ... each


def bounded_powers(wide_R: Ints, most_R: Ints, exponent_R: Ints, top: int) -> Floats:
    """(sum over j <= most of C(wide, j) x^j)^exponent up to x^top; each distinct one is computed once."""
    key, back = np.unique(np.stack([wide_R, most_R, exponent_R]), axis=1, return_inverse=True)
    base = binomials(key[0], top) * (np.arange(top + 1) <= key[1][:, None])
    return powers(base, key[2])[back.reshape(-1)]


def powers(base_RK: Floats, exponent_R: Ints) -> Floats:
    """Each row to its own power, by squaring; all terms stay positive."""
    result_RK = np.zeros(base_RK.shape)
    result_RK[:, 0] = 1.0
    left_R = exponent_R.copy()
    while left_R.any():
        odd = np.flatnonzero(left_R & 1)
        if len(odd):
            result_RK[odd] = times(result_RK[odd], base_RK[odd])
        left_R >>= 1
        if left_R.any():
            base_RK = times(base_RK, base_RK)
    return result_RK


def times(left_RK: Floats, right_RK: Floats) -> Floats:
    """Row by row, cut off at the same degree. Cost: O(R K^2)."""
    product_RK = left_RK[:, :1] * right_RK
    for power in range(1, left_RK.shape[1]):
        product_RK[:, power:] += left_RK[:, power : power + 1] * right_RK[:, :-power]
    return product_RK


def last_coefficients(rows_RK: Floats, spare_R: Ints) -> Floats:
    """The highest kept coefficient of each row times (1 + x)^spare."""
    degrees = np.arange(rows_RK.shape[1])
    return np.asarray((rows_RK * choose(spare_R[:, None], degrees[::-1])).sum(axis=1))


def binomials(wide_R: Ints, top: int) -> Floats:
    """(1 + x)^wide up to x^top."""
    return choose(wide_R[:, None], np.arange(top + 1))


def choose(n: npt.ArrayLike, k: npt.ArrayLike) -> Floats:
    """Binomial coefficients; 0 outside the triangle."""
    n, k = np.asarray(n, dtype=np.intp), np.asarray(k, dtype=np.intp)
    triangle = _triangle(1 << int(n.max(initial=0)).bit_length())
    inside = (k >= 0) & (k <= n)
    return np.where(inside, triangle[np.where(inside, n, 0), np.where(inside, k, 0)], 0.0)


@cache
def _triangle(most: int) -> Floats:
    """Pascal's, up to row `most`; kept for every power of two."""
    rows = np.zeros((most + 1, most + 1))
    rows[:, 0] = 1.0
    for n in range(1, most + 1):
        rows[n, 1 : n + 1] = rows[n - 1, :n] + rows[n - 1, 1 : n + 1]
    return rows

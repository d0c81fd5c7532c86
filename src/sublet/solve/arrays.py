"""The arrays that solvers and models speak in: one name per kind of number.

Axes stand in the names of variables, in capitals (`cost_JK`: J jobs, K kinds), with a legend at the top of the file.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

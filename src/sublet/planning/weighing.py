"""The options of a job as rows for people: the very numbers that were compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.weighed import Weighed
from sublet.planning.options import Options, OptionsTable
from sublet.planning.terms import Rents
from sublet.solve.arrays import Floats

__all__ = ["WeighedOptions"]

BEYOND = 10_000.0  # times the dearest rent: an hour is worth as good as infinitely much, and no dollars say how much


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeighedOptions:
    """Keeps arrays that there are anyhow; rows are made when they are asked for."""

    table: OptionsTable
    row: int
    rent_R: Rents
    most_R: Floats  # GPUs that could be held of each row
    scarce_C: Floats | None = None  # USD: the surcharge of pools that are short

    @property
    def options(self) -> Options:
        """Of the job."""
        return self.table.of(self.row)

    @property
    def hour_usd(self) -> float | None:
        """The value of an hour of this job; None if more than any rent, or if nothing costs any."""
        pay_C = self._pay()
        finite_C = pay_C[np.isfinite(self.options.cost_C)]
        dearest = float(finite_C.max(initial=0.0))
        return self.options.value_of_time if self.options.value_of_time <= BEYOND * dearest else None

    def rows(self) -> Sequence[Weighed]:
        """Those in which it can run, the least first."""
        options = self.options
        pay_C = self._pay()
        menu, hours_C = options.menu, options.hours_C
        time_C = hours_C * options.value_of_time
        rent_C = pay_C * hours_C if len(menu.rate_EC) == 1 else options.cost_C - time_C  # later phases may be elsewhere
        scarce_C = np.zeros(len(hours_C)) if self.scarce_C is None else self.scarce_C
        usd_C, had_C = options.cost_C + scarce_C, menu.fits(self.most_R)
        order = [at for at in np.argsort(usd_C, kind="stable").tolist() if np.isfinite(usd_C[at])]
        return [
            Weighed(
                shape=menu.shapes[at],
                hours=float(hours_C[at]),
                usd_per_h=float(pay_C[at]),
                rent_usd=float(rent_C[at]),
                time_usd=float(time_C[at]),
                scarce_usd=float(scarce_C[at]),
                other_usd=float(options.cost_C[at] - rent_C[at] - time_C[at]),
                usd=float(usd_C[at]),
                obtainable=bool(had_C[at]),
            )
            for at in order
        ]

    def _pay(self) -> Floats:
        return self.options.menu.pay(0.0, self.rent_R)

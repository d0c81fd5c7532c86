"""What it costs a job's own purse to stop in time, at what the job burns now."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.runtime.clock import Clock
from sublet.runtime.controller.bill import Bill
from sublet.runtime.controller.factory import RecordFactory
from sublet.runtime.controller.feasibility import STOP_S
from sublet.runtime.controller.records import JobRecord

__all__ = ["Stopping"]

LAST_S = 2.0  # wall, to be ended without a save: a second for that, and what may lie between two looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """Of all jobs."""

    bill: Bill
    factory: RecordFactory
    clock: Clock

    def usd(self, record: JobRecord) -> float:
        """To save, to leave, and to carry what was saved."""
        return self._usd(record, STOP_S + record.write_s)

    def last_usd(self, record: JobRecord) -> float:
        """To be ended, where it did not get away in time."""
        return self._usd(record, LAST_S)

    def _usd(self, record: JobRecord, wall_s: float) -> float:
        usd_per_s = self.bill.burn_usd_per_h(record.id) * self.clock.speedup / 3600.0
        return usd_per_s * (wall_s + self.factory.carry_s(record.spec))

"""Work of scripts without a session that is neither known to be kept nor to be lost: it is unknown until a sign comes.

A start that has written files below its directory may go on from them when it is started again, and so may one at which
nobody looked. Once a later start is seen to read one of those files, all that was done before it was written is kept,
and what was done after it is redone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublet.domain.money import Money
from sublet.domain.quantity import counted
from sublet.runtime.controller.bill import Bill, Purpose
from sublet.runtime.controller.start import Start

if TYPE_CHECKING:
    from sublet.runtime.controller.records import JobRecord

__all__ = ["describe", "may_be_kept", "set_aside", "settle"]

TOLD_AFTER = 3  # starts
MOST = 50  # starts that are remembered one by one


def may_be_kept(record: JobRecord) -> bool:
    """What its present start, or its last, has done and not saved where we know of it."""
    return not record.spec.sdk and record.start_useful is not None and record.wrote is not False


def set_aside(
    record: JobRecord, bill: Bill, now_s: float, *, began_s: float | None = None, wrote_s: float | None = None
) -> None:
    """It has ended, and its work is unknown."""
    grains = bill.jobs[record.id].unknown - bill.unsure(record.id)
    if grains <= 0:
        return
    if began_s is None:  # under an earlier controller
        began_s = record.unsure[-1].ended_s if record.unsure else record.began_s
    record.unsure.append(Start(now_s if began_s is None else began_s, wrote_s, now_s, grains))
    if len(record.unsure) > MOST:
        first, second, *others = record.unsure
        record.unsure = [Start(first.began_s, second.wrote_s, second.ended_s, first.grains + second.grains), *others]


def settle(record: JobRecord, bill: Bill, loaded_s: float) -> None:
    """What was written at this time was read: the starts before that went on from one another."""
    account = bill.jobs[record.id]
    for start in record.unsure:
        kept = start.grains_by(min(loaded_s, start.ended_s if start.wrote_s is None else start.wrote_s))
        account.keep(kept)
        account.move(Purpose.REDONE, start.grains - kept)
    record.unsure.clear()


def describe(record: JobRecord) -> str:
    """What its owner is to know; "" = nothing yet."""
    if len(record.unsure) < TOLD_AFTER:
        return ""
    usd = Money(sum(start.grains for start in record.unsure)).usd
    return (
        f"was started again {counted(len(record.unsure), 'time')}, and whether it went on from the files that it wrote "
        f"is unknown, as is what USD {usd:.2f} were for: save in $SUBLET_CHECKPOINT_DIR and load it at the start"
    )

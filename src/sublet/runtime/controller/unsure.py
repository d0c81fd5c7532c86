"""Work of scripts without a session that is neither known to be kept nor to be lost: it is unknown until a sign comes.

A start that has written files below its directory may go on from them when it is started again. So may one at which
nobody looked, or of which nothing was seen: it may have saved elsewhere. Once a later start is seen to read one of
those files, all that was done before it was written is kept, and what was done after it is redone. Once one is seen to
save, starts of which nothing was seen have saved nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublet.domain.money import Money
from sublet.domain.quantity import counted
from sublet.runtime.controller.bill import Bill, Purpose
from sublet.runtime.controller.start import Start

if TYPE_CHECKING:
    from sublet.runtime.controller.records import JobRecord

__all__ = ["describe", "lose_unsaved", "may_be_kept", "set_aside", "settle"]

TOLD_AFTER = 3  # starts
MOST = 50  # starts that are remembered one by one


def may_be_kept(record: JobRecord) -> bool:
    """What its present start, or its last, has done and not saved where we know of it."""
    return not record.spec.sdk and record.start_useful is not None and record.wrote is not False


def set_aside(
    record: JobRecord,
    bill: Bill,
    now_s: float,
    *,
    began_s: float | None = None,
    wrote_s: float | None = None,
    looked: bool = False,
) -> None:
    """It has ended, and its work is unknown."""
    grains = bill.jobs[record.id].unknown - bill.unsure(record.id)
    if grains <= 0:
        return
    if began_s is None:  # under an earlier controller
        began_s = record.unsure[-1].ended_s if record.unsure else record.began_s
    began_s = now_s if began_s is None else began_s
    if looked and wrote_s is None:
        wrote_s = began_s  # of all that it did, nothing was seen
    record.unsure.append(Start(began_s, wrote_s, now_s, grains))
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


def lose_unsaved(record: JobRecord, bill: Bill) -> None:
    """It is seen where it saves: the starts of which nothing was seen there were for nothing."""
    unseen = [start for start in record.unsure if not _may_have_written(start)]
    bill.jobs[record.id].move(Purpose.REDONE, sum(start.grains for start in unseen))
    record.unsure = [start for start in record.unsure if _may_have_written(start)]


def _may_have_written(start: Start) -> bool:
    return start.wrote_s is None or start.wrote_s > start.began_s


def describe(record: JobRecord) -> str:
    """What its owner is to know; "" = nothing yet."""
    if len(record.unsure) < TOLD_AFTER:
        return ""
    usd = Money(sum(start.grains for start in record.unsure)).usd
    again, unknown = f"was started again {counted(len(record.unsure), 'time')}", f"what USD {usd:.2f} were for"
    if not any(_may_have_written(start) for start in record.unsure):
        return (
            f"{again}, and nothing that it saved was seen below its directory: whether it resumed is unknown, as is "
            f"{unknown}. Save in $SUBLET_CHECKPOINT_DIR and load it at the start, or use train.checkpointed"
        )
    return (
        f"{again}, and whether it went on from the files that it wrote is unknown, as is {unknown}: "
        "save in $SUBLET_CHECKPOINT_DIR and load it at the start"
    )

"""Timers of the kernel. A closed union; in the log each is a word or two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from sublet.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class PlanAgain:
    """A plan asked to be made anew, or was refused."""


@dataclass(frozen=True, slots=True)
class RetryOffer:
    """An offer was sold out; it may be asked for again."""

    offer_id: str


@dataclass(frozen=True, slots=True)
class CheckPurse:
    """The budget will be spent but for what is reserved."""


@dataclass(frozen=True, slots=True)
class GrowAgain:
    """Jobs waited with growing, since nodes came and went; the first of them may grow again."""


@dataclass(frozen=True, slots=True)
class FallDue:
    """Nodes were to be taken by now; if the market has said nothing of it, nothing is known of it any more."""


@dataclass(frozen=True, slots=True)
class MoveDue:
    """A job must leave a node that will be taken, or survivors of a loss have waited long enough for a plan."""


@dataclass(frozen=True, slots=True)
class PeriodOver:
    """A budget has the money of its next period."""


Timer = PlanAgain | RetryOffer | CheckPurse | GrowAgain | FallDue | MoveDue | PeriodOver


def timer_to_text(timer: Timer) -> str:
    """As logs and snapshots name it.

    >>> timer_to_text(RetryOffer("spot"))
    'retry spot'
    """
    match timer:
        case PlanAgain():
            return "plan"
        case RetryOffer(offer_id):
            return f"retry {offer_id}"
        case CheckPurse():
            return "purse"
        case GrowAgain():
            return "grow"
        case FallDue():
            return "fall"
        case MoveDue():
            return "move"
        case PeriodOver():
            return "period"
        case _:
            assert_never(timer)


def timer_from_text(text: str) -> Timer:
    """The way back; InvalidValue where it names none.

    >>> timer_from_text("retry spot")
    RetryOffer(offer_id='spot')
    """
    purpose, _, offer_id = text.partition(" ")
    match purpose:
        case "plan" if text == purpose:
            return PlanAgain()
        case "retry" if offer_id:
            return RetryOffer(offer_id)
        case "purse" if text == purpose:
            return CheckPurse()
        case "grow" if text == purpose:
            return GrowAgain()
        case "fall" if text == purpose:
            return FallDue()
        case "move" if text == purpose:
            return MoveDue()
        case "period" if text == purpose:
            return PeriodOver()
        case _:
            raise InvalidValue("timer", text, "plan, purse, grow, fall, move, period, or retry and an offer")

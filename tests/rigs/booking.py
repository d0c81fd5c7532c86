"""A bill beside its kernel, as the pump drives both."""

from __future__ import annotations

from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.runtime.controller.money.bill import Bill

__all__ = ["booked"]


def booked(bill: Bill, event: Event, recorded: tuple[Action, ...] | list[Action] = ()) -> list[Action]:
    """The kernel hears an event, with the orders that followed where it is lived again; the bill books around it."""
    jobs = bill.before(event)
    orders = bill.kernel.handle(event, recorded)
    bill.after(event, jobs, orders)
    return orders

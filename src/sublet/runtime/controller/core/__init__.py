"""The controller itself: the pump around the kernel, orders, decisions of the policy, recovery."""

from __future__ import annotations

from sublet.runtime.controller.core.loop import Controller

__all__ = [
    "Controller",
]

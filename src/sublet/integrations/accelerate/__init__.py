"""accelerate, elastic: its Accelerator with a session behind `prepare`.

from sublet.integrations.accelerate import Accelerator

for epoch in accelerator.epochs(5):     # in place of range(5): begins where training is
"""

from sublet.integrations.checks import look_alone

look_alone()

from sublet.integrations.accelerate.accelerator import Accelerator  # noqa: E402 - accelerate looks for ranks

__all__ = ["Accelerator"]

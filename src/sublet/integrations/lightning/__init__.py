"""Lightning, elastic: a strategy for its Trainer.

from sublet.integrations.lightning import SubletStrategy

trainer = L.Trainer(strategy=SubletStrategy(global_batch=64), max_epochs=10)
"""

from sublet.integrations.checks import look_alone

look_alone()

from sublet.integrations.lightning.strategy import SubletStrategy  # noqa: E402 - Lightning looks for ranks

__all__ = ["SubletStrategy"]

"""The Trainer of Hugging Face, elastic: change its import, and nothing else.

    from sublet.integrations.transformers import Trainer

TrainingArguments say the batch of one process, which is the global batch at any number of workers.
"""

from sublet.integrations.checks import look_alone

look_alone()

from sublet.integrations.transformers.trainer import Trainer  # noqa: E402 - TrainingArguments look for ranks

__all__ = ["Trainer"]

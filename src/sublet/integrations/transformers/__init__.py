"""The Trainer of Hugging Face, elastic: change its import, and nothing else.

    from sublet.integrations.transformers import Trainer

The global batch is what TrainingArguments say of one process, at every width.
"""

from sublet.integrations.alone import look_alone

look_alone()

from sublet.integrations.transformers.trainer import Trainer  # noqa: E402 - TrainingArguments look for ranks

__all__ = ["Trainer"]

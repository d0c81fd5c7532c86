"""Stages of common models of transformers, by the class of the model: a row for each family.

    model = train.stages(GPT2LMHeadModel(config))      # gives logits; loss=lambda logits, batch: ...

The stages have the model's own modules, tied weights among them. They are called with `input_ids`, or a mapping that
has them and perhaps `attention_mask` and `token_type_ids`. A mask goes from stage to stage unchanged, beside the hidden
states: each block makes of it what its attention needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sublet.errors import InvalidValue
from sublet.train.grid.stages import Stages

TAKEN = ("input_ids", "attention_mask", "token_type_ids")
Embed = Callable[[Any, Mapping[str, Any]], torch.Tensor]
Head = Callable[[Any, torch.Tensor], torch.Tensor]
NOT_TAKEN = ("inputs_embeds", "position_ids", "past_key_values", "encoder_hidden_states")


@dataclass(frozen=True, slots=True)
class Family:
    """Names are of modules of the model, with dots. `embed` and `head` are given those of theirs by the last name."""

    blocks: str
    before: tuple[str, ...]
    embed: Embed
    after: tuple[str, ...]
    head: Head
    causal: bool
    rotary: str = ""  # what makes position embeddings, which each block is given


def stages(model: nn.Module) -> Stages:
    """The same modules as a sequence; InvalidValue if the model is of no family that is known here."""
    family = FAMILIES.get(type(model).__name__)
    if family is None:
        allowed = f"one of {', '.join(FAMILIES)}; or write train.Stages(first, blocks, last) of its modules"
        raise InvalidValue("stages", type(model).__name__, allowed)
    config: Any = model.config
    if getattr(config, "is_decoder", False) != family.causal and not family.causal:
        raise InvalidValue("stages", "a decoder of BERT", "an encoder: is_decoder=False")
    rotary = model.get_submodule(family.rotary) if family.rotary else None
    return Stages(
        First(_named(model, family.before), family.embed),
        [Block(each, config, rotary, causal=family.causal) for each in model.get_submodule(family.blocks).children()],
        Last(_named(model, family.after), family.head),
    )


class End(nn.Module):
    """Some of the model's modules, by their names, and a function of them."""

    def __init__(self, modules: Mapping[str, nn.Module], function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function
        for name, each in modules.items():
            self.add_module(name, each)


class First(End):
    """Words in, hidden states out, and the mask beside them if there is one."""

    def forward(self, given: Any) -> Any:
        """A batch of a collator of transformers, or input_ids alone."""
        batch = given if isinstance(given, Mapping) else {"input_ids": given}
        for name in NOT_TAKEN:
            if batch.get(name) is not None:
                raise InvalidValue("batch", name, f"with {', '.join(TAKEN)} alone, where the model is in stages")
        hidden, mask = self._function(self, batch), batch.get("attention_mask")
        return hidden if mask is None else (hidden, mask)


class Block(nn.Module):
    """One layer, with its mask and its position embeddings."""

    def __init__(self, layer: nn.Module, config: Any, rotary: nn.Module | None, *, causal: bool) -> None:
        super().__init__()
        self.layer, self._config = layer, config
        if rotary is not None:
            self.rotary = rotary
        masks = importlib.import_module("transformers.masking_utils")
        self._mask = masks.create_causal_mask if causal else masks.create_bidirectional_mask

    def forward(self, x: Any) -> Any:
        """Hidden states, with the mask behind them or without."""
        hidden, mask = x if isinstance(x, tuple) else (x, None)
        facts: dict[str, Any] = {}
        if hasattr(self, "rotary"):
            places = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
            facts["position_embeddings"] = self.rotary(hidden, position_ids=places)
        seen = {"config": self._config, "inputs_embeds": hidden, "attention_mask": mask}
        if self._mask.__name__ == "create_causal_mask":
            seen["past_key_values"] = None
        made = self.layer(hidden, attention_mask=self._mask(**seen), **facts)
        return made if mask is None else (made, mask)


class Last(End):
    """Hidden states in, logits out."""

    def forward(self, x: Any) -> torch.Tensor:
        """The mask is dropped."""
        return self._function(self, x[0] if isinstance(x, tuple) else x)


def _named(model: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    return {name.rpartition(".")[2]: model.get_submodule(name) for name in names}


def _gpt2(own: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    words = batch["input_ids"]
    hidden = own.wte(words) + own.wpe(torch.arange(words.shape[1], device=words.device))
    if batch.get("token_type_ids") is not None:
        hidden = hidden + own.wte(batch["token_type_ids"])
    found: torch.Tensor = own.drop(hidden)
    return found


def _bert(own: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    found: torch.Tensor = own.embeddings(input_ids=batch["input_ids"], token_type_ids=batch.get("token_type_ids"))
    return found


GPT2 = Family(
    blocks="transformer.h",
    before=("transformer.wte", "transformer.wpe", "transformer.drop"),
    embed=_gpt2,
    after=("transformer.ln_f", "lm_head"),
    head=lambda own, hidden: own.lm_head(own.ln_f(hidden)),
    causal=True,
)
LLAMA = Family(
    blocks="model.layers",
    before=("model.embed_tokens",),
    embed=lambda own, batch: own.embed_tokens(batch["input_ids"]),
    after=("model.norm", "lm_head"),
    head=lambda own, hidden: own.lm_head(own.norm(hidden)),
    causal=True,
    rotary="model.rotary_emb",
)
BERT_WORDS = Family(
    blocks="bert.encoder.layer",
    before=("bert.embeddings",),
    embed=_bert,
    after=("cls",),
    head=lambda own, hidden: own.cls(hidden),
    causal=False,
)
BERT_CLASSES = Family(
    blocks="bert.encoder.layer",
    before=("bert.embeddings",),
    embed=_bert,
    after=("bert.pooler", "dropout", "classifier"),
    head=lambda own, hidden: own.classifier(own.dropout(own.pooler(hidden))),
    causal=False,
)
FAMILIES = {
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": LLAMA,
    "BertForMaskedLM": BERT_WORDS,
    "BertForSequenceClassification": BERT_CLASSES,
}

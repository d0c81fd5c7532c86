"""Stages of models of transformers compute what the models compute: outputs, losses and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="not installed: the integrations extra has it")

from torch.nn import functional  # noqa: E402

from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.families import FAMILIES, stages  # noqa: E402

WORDS = 50
SMALL = {"vocab_size": WORDS, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
MADE = {
    "GPT2LMHeadModel": {"vocab_size": WORDS, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32},
    "LlamaForCausalLM": {**SMALL, "intermediate_size": 40, "num_key_value_heads": 2, "max_position_embeddings": 32},
    "BertForMaskedLM": {**SMALL, "intermediate_size": 40, "max_position_embeddings": 32},
    "BertForSequenceClassification": {**SMALL, "intermediate_size": 40, "max_position_embeddings": 32, "num_labels": 3},
}


def made(name, **more):
    torch.manual_seed(3)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**MADE[name], **more)).eval()


def words():
    torch.manual_seed(4)
    return torch.randint(1, WORDS, (4, 11))


def padded():
    mask = torch.ones(4, 11, dtype=torch.long)
    mask[1, :4] = mask[3, :8] = 0  # from the left, so that it counts for words behind it
    return {"input_ids": words(), "attention_mask": mask}


def test_every_family_is_tried():
    assert MADE.keys() == FAMILIES.keys()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MADE)
def test_stages_give_what_the_model_gives(name, attention):
    model = made(name, attn_implementation=attention)
    cut = stages(model)
    batch = padded()
    there = batch["attention_mask"].bool()
    with torch.no_grad():
        assert torch.allclose(cut(batch["input_ids"]), model(batch["input_ids"]).logits, atol=1e-6)
        one, other, without = cut(batch), model(**batch).logits, cut(batch["input_ids"])
    if one.dim() == 3:
        one, other, without = one[there], other[there], without[there]
    assert torch.allclose(one, other, atol=1e-6)
    assert not torch.allclose(one, without, atol=1e-4)  # the mask counts


@pytest.mark.parametrize("name", MADE)
def test_stages_learn_what_the_model_learns(name):
    model = made(name)
    cut, batch = stages(model), padded()
    gradients = []
    for give in (lambda: model(**batch).logits, lambda: cut(batch)):
        model.zero_grad()
        logits = give()
        functional.cross_entropy(logits.flatten(0, -2), torch.arange(logits.numel() // logits.shape[-1]) % 3).backward()
        gradients.append({key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][key], atol=1e-6), key


@pytest.mark.parametrize("name", MADE)
def test_stages_have_the_models_own_parameters(name):
    model = made(name)
    ours = {id(each) for each in stages(model).parameters()}
    left = {key for key, each in model.named_parameters() if id(each) not in ours}
    assert not left
    assert len(ours) == len(list(model.parameters()))


def test_gpt_2_in_stages_is_one_tied_weight():
    cut = stages(made("GPT2LMHeadModel"))
    assert cut.first.wte.weight is cut.last.lm_head.weight


def test_types_of_tokens_reach_the_embeddings():
    for name in ("GPT2LMHeadModel", "BertForMaskedLM"):
        model = made(name)
        batch = {"input_ids": words(), "token_type_ids": torch.arange(44).view(4, 11) % 2}
        with torch.no_grad():
            assert torch.allclose(stages(model)(batch), model(**batch).logits, atol=1e-6), name


def test_a_batch_with_what_stages_do_not_take_is_refused():
    with pytest.raises(InvalidValue, match="position_ids"):
        stages(made("GPT2LMHeadModel"))({"input_ids": words(), "position_ids": torch.zeros(4, 11, dtype=torch.long)})


def test_a_model_of_no_known_family_is_refused_with_what_to_write():
    with pytest.raises(InvalidValue, match=r"train\.Stages"):
        stages(torch.nn.Linear(2, 2))


def test_a_decoder_of_bert_is_refused():
    with pytest.raises(InvalidValue, match="encoder"):
        stages(made("BertForMaskedLM", is_decoder=True))

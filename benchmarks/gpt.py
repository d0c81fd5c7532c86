"""A GPT of 124 million parameters on text that can be learned, for what is measured on a GPU; tiny on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import TensorDataset

from sublet import train

__all__ = ["LARGE", "TINY", "Gpt", "Sizes", "loss_of", "made", "score", "text_of"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model and its text."""

    words: int
    length: int
    width: int
    depth: int
    heads: int
    used: int  # words that the text is made of
    next: int  # words that may follow each of them
    rate: float
    device: str


LARGE = Sizes(50_257, 1_024, 768, 12, 12, used=512, next=8, rate=6e-4, device="cuda")
TINY = Sizes(97, 16, 32, 2, 2, used=64, next=4, rate=3e-3, device="cpu")


class Block(nn.Module):
    """One layer of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, letters, width) to the same."""
        batch, length, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.after(x)), approximate="tanh"))


class Words(nn.Module):
    """Words and their places, which begin small."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(sizes.words, sizes.width), nn.Embedding(sizes.length, sizes.width)
        for table in (self.word, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """From (batch, letters) to what blocks take."""
        found: Tensor = self.word(text) + self.place(torch.arange(text.shape[1], device=text.device))
        return found


class Logits(nn.Module):
    """Of the word after each word."""

    def __init__(self, width: int, words: nn.Embedding) -> None:
        super().__init__()
        self.last, self.words = nn.LayerNorm(width), words

    def forward(self, x: Tensor) -> Tensor:
        """By the words' own weights."""
        found: Tensor = self.last(x) @ self.words.weight.T
        return found


class Gpt(train.Stages):
    """GPT-2 with tied embeddings, as its authors have them."""

    def __init__(self, sizes: Sizes) -> None:
        first = Words(sizes)
        blocks = [Block(sizes.width, sizes.heads) for _ in range(sizes.depth)]
        super().__init__(first, blocks, Logits(sizes.width, first.word))


def made(sizes: Sizes) -> tuple[Gpt, torch.optim.Optimizer]:
    """The same each time."""
    torch.manual_seed(0)
    model = Gpt(sizes).to(sizes.device)
    return model, torch.optim.AdamW(model.parameters(), lr=sizes.rate, fused=sizes.device == "cuda")


def loss_of(model: Gpt, pair: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the words of a micro-batch, in bfloat16 where that is done."""
    with torch.autocast(pair[0].device.type, dtype=torch.bfloat16):
        return score(model(pair[0]), pair)


def score(logits: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
    """As a session takes it: `loss=score`."""
    return cross_entropy(logits.flatten(0, 1), pair[1].flatten())


def text_of(sizes: Sizes, samples: int) -> TensorDataset:
    """Samples of a chain: each word is followed by one of a few, all alike, so that the loss ends at log(next)."""
    rng = torch.Generator().manual_seed(0)
    follows = torch.randint(0, sizes.used, (sizes.used, sizes.next), generator=rng)
    names = torch.randperm(sizes.words, generator=rng)[: sizes.used]
    text = torch.empty(samples, sizes.length + 1, dtype=torch.int64)
    text[:, 0] = torch.randint(0, sizes.used, (samples,), generator=rng)
    for at in range(sizes.length):
        which = torch.randint(0, sizes.next, (samples,), generator=rng)
        text[:, at + 1] = follows[text[:, at], which]
    text = names[text].to(sizes.device)
    return TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())

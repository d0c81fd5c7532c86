"""A small GPT that learns to write this project's documentation, letter by letter, elastic.

Alone, `python examples/train_gpt.py`, it is plain PyTorch in one process.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from pace import Pace
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sublet import train

CONTEXT = 32  # letters that the model sees


class Block(nn.Module):
    """Attention to the letters before, then a little thought about each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.thought = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("future", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, letters, width) to the same."""
        seen = self.before(x)
        mixed, _ = self.attention(seen, seen, seen, attn_mask=self.future, need_weights=False)
        x = x + mixed
        return x + self.thought(self.after(x))


class Gpt(nn.Module):
    """Which letter comes next?"""

    def __init__(self, letters: int, width: int = 48, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, letters))

    def forward(self, text: Tensor) -> Tensor:
        """Logits for the letter after each letter."""
        return self.out(self.blocks(self.letter(text) + self.place))


def windows(samples: int) -> tuple[TensorDataset, int]:
    """Pieces of text with the same pieces one letter later, and how many letters there are."""
    folder = Path(__file__).resolve().parents[1] / "docs" / "background"
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md")))
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(letter) for letter in text])
    starts = torch.randint(0, len(codes) - CONTEXT - 1, (samples,), generator=torch.Generator().manual_seed(0))
    pieces = codes[starts[:, None] + torch.arange(CONTEXT + 1)]
    return TensorDataset(pieces[:, :-1], pieces[:, 1:]), len(letters)


def main() -> None:
    """Train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2_048)
    parser.add_argument("--ms-per-sample", type=float, default=0.0, help="pretend that an accelerator needs so long")
    asked = parser.parse_args()
    torch.manual_seed(0)
    dataset, letters = windows(asked.samples)
    model, pace = Gpt(letters), Pace(asked.ms_per_sample)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with train.session(model, optimizer, dataset, global_batch=32) as session:
        for text, following in session.batches(epochs=asked.epochs):
            logits = model(text)
            session.step(nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten()))
            pace.keep(len(text))
        if session.rank == 0:
            print(f"{session.steps} steps, loss {session.loss:.4f}")


if __name__ == "__main__":
    main()

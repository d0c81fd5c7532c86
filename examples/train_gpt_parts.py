"""A small GPT in stages, of which each worker may have some. Run with `python examples/train_gpt_parts.py`."""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.utils.data import TensorDataset

from sublet import train

LETTERS, LENGTH, WIDTH, HEADS, LAYERS = 32, 16, 32, 2, 6


class Block(nn.Module):
    """Attention to what came before, then a perceptron, each beside a short cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.ask, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        batch, length, _ = x.shape
        parts = self.ask(self.first(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        out: torch.Tensor = x + self.think(self.second(x))
        return out


class Letters(nn.Module):
    """What comes before the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Letters with their places."""
        found: torch.Tensor = self.letter(codes) + self.place(torch.arange(codes.shape[1]))
        return found


def main() -> None:
    """Train, and say how well the next letter is guessed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=480)
    options = parser.parse_args()
    rows = [(torch.arange(LENGTH + 1) * (1 + row % 5) + row) % LETTERS for row in range(options.samples)]
    codes = torch.stack(rows)
    torch.manual_seed(0)
    scores_by_place = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS, bias=False))
    model = train.Stages(Letters(), [Block() for _ in range(LAYERS)], scores_by_place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(scores: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), batch[1].flatten())

    with train.session(
        model,
        optimizer,
        TensorDataset(codes[:, :-1], codes[:, 1:]),
        global_batch=24,
        micro_batch=2,  # parts work on these in turn
        clip_norm=1.0,
        epochs=options.epochs,
        loss=loss,
    ) as s:
        for _ in s.epochs():
            for batch in s:
                s.step(batch)
    if s.rank == 0:
        print(f"{s.steps} steps, loss {s.loss:.3f} (a guess among {LETTERS} letters: {math.log(LETTERS):.3f})")


if __name__ == "__main__":
    main()

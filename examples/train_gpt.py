"""A small GPT that learns to write like Sublet's own source. Run with `python examples/train_gpt.py`."""

from __future__ import annotations

import argparse
import math
import time
from importlib.resources import files

import torch
from torch import nn
from torch.utils.data import Dataset

from sublet import train

LENGTH, WIDTH, HEADS, LAYERS = 64, 64, 4, 2


class Text(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of a text; the target of each letter is the next one."""

    def __init__(self, text: str, samples: int) -> None:
        self.letters = sorted(set(text))
        number = {letter: index for index, letter in enumerate(self.letters)}
        self._codes = torch.tensor([number[letter] for letter in text])
        self._starts = torch.randint(len(text) - LENGTH, (samples,), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = int(self._starts[index])
        return self._codes[start : start + LENGTH], self._codes[start + 1 : start + LENGTH + 1]


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
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        out: torch.Tensor = x + self.think(self.second(x))
        return out


class Gpt(nn.Module):
    """Letters in, scores of the next letter out."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Scores by place."""
        x = self.blocks(self.letter(codes) + self.place.weight[: codes.shape[1]])
        scores: torch.Tensor = self.last(x) @ self.letter.weight.T
        return scores


def main() -> None:
    """Train, and say how well the next letter is guessed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=3_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--ms-per-sample", type=float, default=0.0, help="wait so long, as for an accelerator")
    options = parser.parse_args()

    source = files("sublet")
    text = "".join(source.joinpath(name).read_text("utf-8") for name in ("errors.py", "wire/messages.py", "plugins.py"))
    dataset = Text(text, options.samples)
    torch.manual_seed(0)
    model = Gpt(len(dataset.letters))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with train.session(model, optimizer, dataset, global_batch=options.batch, clip_norm=1.0) as s:
        for codes, targets in s.batches(epochs=options.epochs):
            time.sleep(options.ms_per_sample * len(codes) / 1e3)
            s.step(nn.functional.cross_entropy(model(codes).flatten(0, 1), targets.flatten()))
    if s.rank == 0:
        letters = len(dataset.letters)
        print(f"{s.steps} steps, loss {s.loss:.3f} (a guess among {letters} letters: {math.log(letters):.3f})")


if __name__ == "__main__":
    main()

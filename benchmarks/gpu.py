"""What a session costs on a GPU: a 124M-parameter GPT trained by a plain loop and by `sublet.train`, in turns.

    python -m benchmarks.gpu            needs CUDA; `--tiny` runs the same on a CPU, to see that it works

Both loops own a model and an optimizer of their own and read the same samples; blocks of steps alternate, so that
clocks and temperature are the same for both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import TensorDataset

from sublet import train


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


class Gpt(nn.Module):
    """GPT-2 with tied embeddings: 124 million parameters at its usual size."""

    def __init__(self, words: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.last = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the word after each word."""
        places = torch.arange(text.shape[1], device=text.device)
        return self.last(self.blocks(self.word(text) + self.place(places))) @ self.word.weight.T


def main() -> None:
    """Print the medians and their ratio as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="on a CPU, a model of nothing")
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--steps", type=int, default=10, help="per block")
    asked = parser.parse_args()
    device = torch.device("cpu" if asked.tiny else "cuda")
    words, length, batch = (97, 16, 4) if asked.tiny else (50_257, 1_024, 16)
    sizes = (32, 2, 2) if asked.tiny else (768, 12, 12)
    steps = (asked.blocks + 2) * asked.steps
    text = torch.randint(0, words, (batch * 64, length + 1), generator=torch.Generator().manual_seed(0)).to(device)
    dataset = TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())

    def made() -> tuple[Gpt, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = Gpt(words, length, *sizes).to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-4, fused=not asked.tiny)

    def loss_of(model: Gpt, pair: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(pair[0])
            return cross_entropy(logits.flatten(0, 1), pair[1].flatten())

    model, optimizer = made()
    mine, my_optimizer = made()
    plain = plain_steps(model, optimizer, dataset, batch, loss_of)
    with train.session(mine, my_optimizer, dataset, global_batch=batch) as session:
        ours = session_steps(session, mine, steps // 64 + 2, loss_of)
        times = in_turns({"plain": plain, "sublet": ours}, blocks=asked.blocks, steps=asked.steps, device=device)
        medians = {name: statistics.median(found) for name, found in times.items()}
        pairs = [b / a for a, b in zip(times["plain"], times["sublet"], strict=True)]
        print(
            json.dumps(
                {
                    "parameters": sum(p.numel() for p in model.parameters()),
                    "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
                    "torch": torch.__version__,
                    "step_ms": {name: round(1e3 * median, 4) for name, median in medians.items()},
                    "ratio_of_medians": round(medians["sublet"] / medians["plain"], 5),
                    "median_of_ratios": round(statistics.median(pairs), 5),
                    "quartiles_of_ratios": [round(q, 5) for q in statistics.quantiles(pairs, n=4)],
                }
            )
        )


def plain_steps(
    model: Gpt,
    optimizer: torch.optim.Optimizer,
    dataset: TensorDataset,
    batch: int,
    loss_of: Callable[[Gpt, tuple[Tensor, Tensor]], Tensor],
) -> Iterator[None]:
    """The loop that anybody would write."""
    inputs, targets = dataset.tensors
    while True:
        order = torch.randperm(len(inputs)).to(inputs.device)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, (inputs[chosen], targets[chosen])).backward()
            optimizer.step()
            yield


def session_steps(
    session: train.Session, model: Gpt, epochs: int, loss_of: Callable[[Gpt, tuple[Tensor, Tensor]], Tensor]
) -> Iterator[None]:
    """The same, borrowed by a session."""
    for pair in session.batches(epochs=epochs):
        session.step(loss_of(model, pair))
        yield


def in_turns(
    loops: dict[str, Iterator[None]], *, blocks: int, steps: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds per step, of every block; the first two blocks of each warm up."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(blocks + 2):
        for name, loop in loops.items():
            _wait(device)
            began = time.perf_counter()
            for _ in range(steps):
                next(loop)
            _wait(device)
            if number >= 2:
                times[name].append((time.perf_counter() - began) / steps)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()

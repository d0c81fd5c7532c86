"""What the proof that a model may be cut adds to the start of a training, in micro-batches of the whole model.

    python -m benchmarks.proof                  a GPT of 10.6 million parameters, CPU time, ways by turns
    python -m benchmarks.proof --rounds 9

Beside it: what each worker does at any start (`learn`), and the look without numbers where there is no room.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpt import Gpt, Sizes, loss_of, text_of
from sublet.train.grid.atoms import Atom, loaded
from sublet.train.grid.cutting import Cut
from sublet.train.grid.dice import Dice
from sublet.train.grid.proof import Proof
from sublet.train.samples import Samples

SIZES = Sizes(2_048, 128, 320, 8, 8, used=512, next=8, rate=1e-3, device="cpu")
MICRO = 4


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    model, atom = Gpt(SIZES), Atom(0, MICRO)
    samples = Samples(text_of(SIZES, 64), 0, None, None)
    load = partial(loaded, samples, 0)
    cut, dice = Cut(model, "blocks"), Dice(0)

    def micro_batch() -> None:
        loss_of(model, load(atom)).backward()
        model.zero_grad()

    def learn() -> None:
        cut.learn(lambda: loss_of(model, load(atom)))

    learn()
    cut.watch(dice.enter, dice.leave)
    proof = Proof(cut, (atom,), load, lambda batch, _: loss_of(model, batch))
    ways: dict[str, Callable[[], None]] = {
        "one micro-batch": micro_batch,
        "learn": learn,
        "proof": lambda: proof.prove(dice),
        "look without numbers": proof.look,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for at in range(rounds + 1):
        for name, way in ways.items():
            began_s = time.process_time()
            way()
            if at:  # the first warms up
                found[name].append(time.process_time() - began_s)
    one_s = statistics.median(found["one micro-batch"])
    parameters = sum(each.numel() for each in model.parameters())
    print(f"{parameters / 1e6:.1f} million parameters, {SIZES.depth} blocks, {MICRO} x {SIZES.length} words")
    for name, times_s in found.items():
        middle_s = statistics.median(times_s)
        print(f"{name:>22}  {middle_s * 1e3:7.0f} ms of CPU  {middle_s / one_s:5.2f} micro-batches")


if __name__ == "__main__":
    main()

"""What ranks draw from torch's random numbers in a training that is cut and goes on, with a session and without."""

from __future__ import annotations

import contextlib

import torch

from sublet import train
from sublet.train.checkpoint.saving import Saver
from tests.rigs.little_network import adam, data, loss_of, network

SEED = 100


class Cut(Exception):
    """The run ends here."""


def drawn_with_a_session(rank, cut, directory):
    """The number that this rank draws at each step; it is cut before step `cut`, one after a checkpoint."""
    torch.manual_seed(SEED + rank)
    model, found, last = network().eval(), {}, Saver.is_due  # as many draws at any width
    torch.manual_seed(SEED + rank)
    Saver.is_due = lambda saver, now_s, *, asked: last(saver, now_s, asked=asked or found.keys() == {*range(cut - 2)})
    opened = train.session(model, adam(model), data(), global_batch=16, epochs=2, checkpoint_dir=directory)
    with contextlib.suppress(Cut), opened as s:
        for batch in s:
            if s.steps == cut:
                raise Cut
            found[s.steps] = float(torch.rand(()))
            s.step(loss_of(model, batch))
    return found


def drawn_with_a_loop(rank, cut, directory):
    """The same with `train.checkpointed`."""
    model, found = network(), {}
    torch.manual_seed(SEED + rank)
    ck = train.checkpointed(directory=directory, model=model)
    for step in range(ck.resume(), 8):
        if step == cut:
            ck._saver.settle()
            return found
        found[step] = float(torch.rand(()))
        ck._saver.is_due = lambda *_, **__: step + 1 == cut - 1  # noqa: B023 - called at once
        ck.tick(step + 1)
    return found

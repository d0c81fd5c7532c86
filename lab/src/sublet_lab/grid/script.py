"""A user's script over the SDK, with parts: as a worker of a grid, or alone, with which the grid is compared."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from typing import Any

import torch
from torch.utils.data import TensorDataset

from sublet import train
from sublet.wire.messages import EXIT_LEFT
from sublet_lab.grid.model import a_net, score
from sublet_lab.grid.worker import Kept

SAMPLES, BATCH, MICRO, EPOCHS, EVERY = 30, 10, 2, 8, 4
STEPS = SAMPLES // BATCH * EPOCHS


def trained(pace_s: float = 0.0, stops: int = EPOCHS, dies: int | None = None) -> dict[str, Any]:
    """Loss of each step that this process made or took part in, evaluations, rates, and what it keeps in the end.

    `stops`: after so many epochs it leaves its loop; `dies`: in the evaluation after so many steps.
    """
    torch.set_num_threads(1)
    model = a_net().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    ids = torch.stack([(torch.arange(5) * (1 + number % 3) + number) % 9 for number in range(SAMPLES)])
    data = TensorDataset(ids[:, :-1], ids[:, 1:])

    def paced(*_: Any) -> None:
        time.sleep(pace_s)
        if s.steps == dies and not model.training:
            os.kill(os.getpid(), signal.SIGKILL)

    for block in model.blocks:
        block.register_forward_pre_hook(paced)
    losses, judged = dict[int, float](), dict[int, float]()
    with train.session(
        model,
        optimizer,
        data,
        global_batch=BATCH,
        micro_batch=MICRO,
        clip_norm=0.5,
        scheduler=schedule,
        epochs=EPOCHS,
        loss=score,
    ) as s:
        kept: Any = s.keep(ends=0, judged=0.0)
        for _ in s.epochs():
            for batch in s:
                s.step(batch)
                losses[s.steps] = s.loss
                if (at := s.steps) % EVERY == 0:  # it may break, and all go back to a checkpoint of an earlier step
                    found = s.evaluate(data, limit=3)
                    if s.steps == at:
                        judged[at] = found
            kept.ends, kept.judged = s.epoch, s.evaluate(data, limit=2)  # a newcomer has what the others have noted
            if kept.ends >= stops:
                break
        steps, place = s.steps, s.place
    return {
        "losses": losses,
        "judged": judged,
        "steps": steps,
        "place": place,
        "ends": kept.ends,
        "last": kept.judged,
        "rates": [group["lr"] for group in optimizer.param_groups],
    }


def run_script(
    name: str,
    connection: socket.socket,
    facts: int,
    kept: Kept | None = None,
    *,
    stops: int = EPOCHS,
    judging: tuple[tuple[str, int], ...] = (),
) -> None:
    """In a child, under orders; what it came to on a pipe. `judging`: the deaths in each evaluation."""
    if kept is not None:
        os.environ.update(SUBLET_CHECKPOINT_DIR=kept.directory, SUBLET_CHECKPOINT_EVERY_S="0.05")
    os.environ.update(SUBLET_CONTROL_FD=str(connection.fileno()), SUBLET_WORKER_ID=name)
    try:
        found = trained(pace_s=0.006, stops=stops, dies=dict(judging).get(name))
    except SystemExit as error:
        found = {"left": error.code == EXIT_LEFT}
    os.write(facts, json.dumps(found).encode())

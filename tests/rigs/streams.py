"""Streams to train on, and workers that read them."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from sublet.train.checkpoint.snapshot import HostCopy, state_from
from sublet.train.sessions.options import Options
from sublet.train.streams.streamed import streamed_of


class Numbers(IterableDataset):
    """0, 1, 2, ... beside what each draws; worker `id` of n has every n-th from `id` on."""

    def __init__(self, last=10**9):
        self.last = last

    def numbers(self):
        info = get_worker_info()
        return range(info.id, self.last, info.num_workers)

    def __iter__(self):
        for number in self.numbers():
            yield self.sample(number)

    def sample(self, number):
        return number, float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002 - as datasets do


class Kept(Numbers):
    """Goes on where it was, as torchdata has it."""

    def __init__(self, last=10**9):
        super().__init__(last)
        self.at = 0
        self.begun = []  # where iterators began

    def __iter__(self):
        self.begun.append(self.at)
        numbers = self.numbers()
        while self.at < len(numbers):
            self.at += 1
            yield self.sample(numbers[self.at - 1])
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def streamed(dataset, *, batch=6, loader_workers=0, shards=4, **more):
    options = Options(global_batch=batch, steps=10**6, shards=shards, seed=5, **more)
    return streamed_of(DataLoader(dataset, batch_size=batch, num_workers=loader_workers), options, None)


def given(samples, step, rank, world, *, batch=6, micro_batch=None):
    """What one rank is given for a step, as rows."""
    rows = []
    for piece in samples.pieces(step * batch, batch, rank, world, micro_batch):
        columns = samples.load(0, piece)
        rows += list(zip(*(column.tolist() for column in columns), strict=True))
        assert len(columns[0]) == piece.count
    return rows


def through_a_checkpoint(state):
    """As it is read again."""
    snapshot = HostCopy().take(state)
    memory = [torch.frombuffer(bytearray(segment), dtype=torch.uint8) for segment in snapshot.segments]
    places = snapshot.tree.places
    tensors = [each.seen_in(memory[each.segment][each.start : each.start + each.size]) for each in places]
    return state_from(snapshot.tree.root, tensors)


def order_of(steps, *, batch=6, lanes=4, waves=1, last=10**9):
    """The numbers of each step, counted by hand: each shard is read on, one after the other."""
    count = lanes * waves
    shards = [iter(range(number, last, count)) for number in range(count)]
    found = []
    for step in range(steps):
        row = []
        for lane in range(lanes):
            share = (lane + 1) * batch // lanes - lane * batch // lanes
            row += [next(shards[lane * waves + step % waves]) for _ in range(share)]
        found.append(row)
    return found

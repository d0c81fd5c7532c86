"""Meshes over real sockets, of workers that are threads here: what is said arrives, and hanging up wakes who waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from sublet.train.following import Broken  # noqa: E402
from sublet.train.grid.gloo import Lines  # noqa: E402
from sublet.train.patience import Patience  # noqa: E402
from sublet.train.staging import Staging  # noqa: E402


class Elsewhere(Staging):
    """As if no tensor were on the host: each message goes the way of those of a GPU."""

    def is_needed(self, tensor):
        return True


def with_all(world, work, staging=None):
    """`work(rank, lines)` in a thread each; what it returned, by rank."""
    lines = [Lines(staging) for _ in range(world)]
    host, port = lines[0].lead()
    for each in lines[1:]:
        each.find(host, port, lambda: None)
    try:
        with ThreadPoolExecutor(world) as pool:
            return [each.result(60) for each in [pool.submit(work, rank, lines[rank]) for rank in range(world)]]
    finally:
        for each in lines:
            each.close()


@pytest.mark.parametrize("staging", [Staging(), Elsewhere()], ids=["from where they are", "through the host"])
def test_letters_arrive_by_their_tags_and_sums_are_over_whom_they_name(staging):
    def work(rank, lines):
        mesh = lines.mesh("all", rank, 3)
        forming = lines.begin(mesh, [(0, 2)] if rank != 1 else [])
        found = torch.zeros(2)
        if rank == 0:
            mesh.send(torch.tensor([1.0, 2.0]), 1, 7)
            mesh.send(torch.tensor([3.0, 4.0]), 1, 8)
        elif rank == 1:
            later = torch.zeros(2)
            mesh.receive(later, 0, 8)
            mesh.receive(found, 0, 7)
            found = torch.cat([found, later])
        mesh.settle()
        lines.until(forming)
        total = torch.tensor([float(rank)], dtype=torch.float64)
        mesh.sum(total, range(3))
        if rank != 1:
            mesh.sum(total, (0, 2))
        alone = torch.ones(1)
        mesh.sum(alone, (rank,))
        return found.tolist(), float(total), float(alone)

    assert with_all(3, work, staging) == [([0, 0], 6, 1), ([1, 2, 3, 4], 3, 1), ([0, 0], 6, 1)]


def test_what_goes_through_the_host_may_be_written_over_at_once():
    def work(rank, lines):
        mesh, tensor = lines.mesh("all", rank, 2), torch.zeros(3, 2)
        if rank == 0:
            tensor.fill_(5.0)
            mesh.send(tensor.t(), 1, 7)  # in another order than that of its numbers
            tensor.zero_()
        else:
            mesh.receive(tensor.view(2, 3), 0, 7)
        mesh.settle()
        return tensor.sum().item()

    assert with_all(2, work, Elsewhere()) == [0.0, 30.0]


def test_a_tensor_of_the_host_is_sent_and_received_where_it_is():
    tensor = torch.ones(2)
    assert Staging().out(tensor) is Staging().room(tensor) is tensor


def test_two_meshes_of_one_generation_do_not_hear_each_other():
    def work(rank, lines):
        first = lines.mesh("meeting", rank, 2)
        first.send(torch.tensor([1.0 + rank]), 1 - rank, 5)
        second = lines.mesh("grid", rank, 2)
        second.send(torch.tensor([10.0 + rank]), 1 - rank, 5)
        found = torch.zeros(1), torch.zeros(1)
        second.receive(found[0], 1 - rank, 5)
        first.receive(found[1], 1 - rank, 5)
        first.settle()
        second.settle()
        return [float(each) for each in found]

    assert with_all(2, work) == [[11, 2], [10, 1]]


@pytest.mark.parametrize("waits", ["receives", "sums", "forms"])
def test_hanging_up_wakes_who_waits_for_one_that_never_comes(waits):
    began = threading.Barrier(2, timeout=60)

    def work(rank, lines):
        mesh = lines.mesh("grid", rank, 2)
        lines.seal()
        began.wait()
        if rank == 1:
            lines.hang_up()
            return "hung up"
        wait = {
            "receives": lambda: mesh.receive(torch.zeros(4), 1, 3),
            "sums": lambda: mesh.sum(torch.zeros(4), (0, 1)),
            "forms": lambda: lines.mesh("another", 0, 2),
        }[waits]
        with pytest.raises(Broken):
            wait()
        with pytest.raises(Broken):  # and whatever comes after
            mesh.sum(torch.zeros(1), (0, 1))
        return "woken"

    assert with_all(2, work) == ["woken", "hung up"]


def test_what_never_ends_is_left_behind_once_the_connections_are_cut():
    class Wall:
        now_s = 0.0

        def monotonic(self):
            self.now_s += 0.2
            return self.now_s

    patience, never = Patience(Wall()), threading.Event()
    assert patience.run(lambda: 5) == 5
    patience.end()
    with pytest.raises(RuntimeError, match="does not notice"):
        patience.run(never.wait)
    assert patience.stuck
    never.set()
    patience.close()

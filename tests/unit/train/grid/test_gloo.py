"""Meshes over real sockets, of workers that are threads here: what is said arrives, and hanging up wakes who waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from sublet.train.grid import gloo  # noqa: E402
from sublet.train.grid.gloo import FEW_BYTES, Lines, Sharing, as_letter, facts_of  # noqa: E402
from sublet.train.link.devices import Staging  # noqa: E402
from sublet.train.link.following import Broken  # noqa: E402
from sublet.train.link.sockets import Patience  # noqa: E402


class Elsewhere(Staging):
    """As if no tensor were on the host: each message goes the way of those of a GPU."""

    def is_needed(self, tensor):
        return True


def with_all(world, work, staging=None, sharings=None):
    """`work(rank, lines)` in a thread each; what it returned, by rank."""
    lines = [Lines(staging, each) for each in sharings or [None] * world]
    host, port = lines[0].open_store()
    for each in lines[1:]:
        each.find_store(host, port, lambda: None)
    try:
        with ThreadPoolExecutor(world) as pool:
            return [each.result(120) for each in [pool.submit(work, rank, lines[rank]) for rank in range(world)]]
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


@pytest.mark.parametrize("count", [1, FEW_BYTES // 8, FEW_BYTES // 8 + 1], ids=["one", "few", "many"])
def test_a_sum_of_few_is_that_of_many(count):
    def work(rank, lines):
        mesh, found = lines.mesh("all", rank, 4), []
        for among in ((0, 1, 2, 3), (1, 3), (0, 2, 3)):
            if rank in among:
                tensor = torch.full((count,), 10.0**rank, dtype=torch.float64)
                mesh.sum(tensor, among)
                found.append(set(tensor.tolist()))
        return found

    assert with_all(4, work) == [
        [{1111.0}, {1101.0}],
        [{1111.0}, {1010.0}],
        [{1111.0}, {1101.0}],
        [{1111.0}, {1010.0}, {1101.0}],
    ]


def test_who_waits_for_a_sum_of_few_is_told_when_the_connections_end():
    heard = threading.Barrier(3)

    def work(rank, lines):
        mesh = lines.mesh("all", rank, 3)
        mesh.sum(torch.zeros(1), range(3))
        heard.wait(120)
        if rank == 1:
            lines.hang_up()  # in one process, this ends the connections of all
            return
        cuts = threading.Timer(0.1, lines.hang_up)  # as the line does when it hears of it: gloo may lose the news
        cuts.start()
        with pytest.raises(Broken):
            mesh.sum(torch.zeros(1), range(3))
        cuts.join()

    with_all(3, work)


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


class OneRoom:
    """As processes on one GPU: who has a letter reads what it tells of where it lies. `opens` = who may."""

    def __init__(self, name, room, *, opens=True):
        self.name, self._room, self._opens, self.read = name, room, opens, 0
        self.gpu, self.device = name.rpartition(" ")[0], torch.device("cpu")

    def letter(self, memory):
        self._room.append(memory)
        return as_letter({"at": len(self._room) - 1})

    def bring(self, letter, room):
        if not self._opens:
            raise RuntimeError("not permitted")
        room.copy_(self._room[facts_of(letter)["at"]])
        self.read += 1

    def refuse(self):
        self.name = ""


def handed_over(sharings, memory):
    """From the first to all others, which say what they have then."""

    def work(rank, lines):
        mesh, found = lines.mesh("all", rank, len(sharings)), torch.zeros_like(memory)
        if rank == 0:
            for to in range(1, len(sharings)):
                mesh.hand(memory, to, 7)
        else:
            mesh.take(found, 0, 7)
        mesh.settle()
        return found.sum().item()

    return with_all(len(sharings), work, sharings=sharings)


def test_who_shares_a_gpu_reads_what_is_handed_over_where_it_lies_and_the_others_get_it_sent():
    room, memory = [], torch.ones(100, dtype=torch.uint8)
    sharings = [OneRoom("gpu 0", room), OneRoom("gpu 0", room), OneRoom("gpu 1", room), OneRoom("", room)]
    assert handed_over(sharings, memory) == [0, 100, 100, 100]
    assert [each.read for each in sharings] == [0, 1, 0, 0]
    assert len(room) == 1
    assert room[0] is memory


def test_whoever_hands_over_waits_until_it_has_been_read():
    room, memory = [], torch.ones(100, dtype=torch.uint8)
    sharings, told = [OneRoom("gpu", room), OneRoom("gpu", room)], []
    bring = sharings[1].bring

    def late(letter, into):
        settling.wait(120)
        told.append("read")
        bring(letter, into)

    sharings[1].bring, settling = late, threading.Event()

    def work(rank, lines):
        mesh = lines.mesh("all", rank, 2)
        if rank == 0:
            mesh.hand(memory, 1, 7)
            settling.set()
        else:
            mesh.take(torch.zeros_like(memory), 0, 7)
        mesh.settle()
        told.append(rank)

    with_all(2, work, sharings=sharings)
    assert told[0] == "read"


def test_one_who_may_not_read_it_breaks_the_grid_once_and_gets_it_sent_from_then_on():
    room, memory = [], torch.ones(100, dtype=torch.uint8)
    sharings = [OneRoom("gpu", room), OneRoom("gpu", room, opens=False)]

    def work(rank, lines):
        mesh = lines.mesh("all", rank, 2)
        if rank == 0:
            mesh.hand(memory, 1, 7)
            with pytest.raises(Broken):
                mesh.settle()
        else:
            mesh.take(torch.zeros_like(memory), 0, 7)
            with pytest.raises(Broken, match="cannot be read: not permitted"):
                mesh.settle()
            lines.hang_up()

    with_all(2, work, sharings=sharings)
    assert handed_over(sharings, memory) == [0, 100]


@pytest.mark.parametrize(
    ("gpus", "by_nccl"),
    [
        (["a 0", "b 0", "c 0"], {0: 2, 1: 2, 2: 1}),  # each has one: all three, and the first two
        (["a 0", "b 0", "a 0"], {0: 1, 1: 1, 2: 0}),  # the first two have one each
        (["a 0", "a 1", "b 0"], {0: 0, 1: 0, 2: 0}),  # one GPU under two numbers
        (["a 0", "", "b 0"], {0: 0, 1: 0, 2: 0}),
    ],
)
def test_those_who_have_a_gpu_each_add_up_by_nccl_and_all_others_by_gloo(monkeypatch, gpus, by_nccl):
    made = [[], [], []]

    def in_place_of_nccl(store, rank, world, _):
        """No CPU has NCCL."""
        here.made.append(world)
        return gloo.gloo_group(store, rank, world)

    monkeypatch.setattr(gloo, "nccl_group", in_place_of_nccl)
    here = threading.local()

    def work(rank, lines):
        here.made = made[rank]
        lines.patience.run = lambda work, *_: work()  # in this thread
        mesh, found = lines.mesh("all", rank, 3), []
        for among in ((0, 1, 2), (0, 1)):
            if rank in among:
                tensor = torch.full((5,), 10.0**rank)
                mesh.sum(tensor, among)
                mesh.sum(tensor, among)
                found.append(tensor[0].item())
        return found

    sharings = [OneRoom(each, []) for each in gpus]
    assert with_all(3, work, Elsewhere(), sharings) == [[333.0, 22.0], [333.0, 22.0], [333.0]]
    assert {rank: len(each) for rank, each in enumerate(made)} == by_nccl


def in_a_chain(monkeypatch, gpus):
    """Each says its rank to both neighbours, twice, and hears them; who has made which groups of two."""
    made = []

    def in_place_of_nccl(store, rank, world, _):
        group = gloo.gloo_group(store, rank, world)
        made.append(world)
        return group

    monkeypatch.setattr(gloo, "nccl_group", in_place_of_nccl)

    def work(rank, lines):
        mesh = lines.mesh("all", rank, len(gpus))
        neighbours = [each for each in (rank - 1, rank + 1) if 0 <= each < len(gpus)]
        lines.until(lines.begin(mesh, [], neighbours))
        found = torch.zeros(2, len(gpus))
        for turn in range(2):
            for each in neighbours:
                mesh.stream_to(torch.tensor([10.0 * rank + turn]), each, 7 + turn)
        for turn in range(2):
            for each in neighbours:
                mesh.stream_from(found[turn, each : each + 1], each, 7 + turn)
        mesh.settle()
        return found.tolist()

    heard = with_all(len(gpus), work, sharings=[OneRoom(each, []) for each in gpus])
    return heard, len(made)


@pytest.mark.parametrize(
    ("gpus", "groups"),
    [
        (["a 0", "b 0", "c 0", "d 0"], 12),  # three pairs, of which each end makes two groups
        (["a 0", "b 0", "b 1", "c 0"], 8),  # the pair in the middle shares a GPU
        (["", "", "", ""], 0),
    ],
)
def test_neighbours_of_a_pipeline_talk_by_nccl_where_each_has_a_gpu(monkeypatch, gpus, groups):
    heard, made = in_a_chain(monkeypatch, gpus)
    assert heard == [
        [[0, 10, 0, 0], [0, 11, 0, 0]],
        [[0, 0, 20, 0], [1, 0, 21, 0]],
        [[0, 10, 0, 30], [0, 11, 0, 31]],
        [[0, 0, 20, 0], [0, 0, 21, 0]],
    ]
    assert made == groups


def test_a_sum_that_ended_because_it_was_cut_is_none():
    patience = Patience()
    patience.check()
    patience.end()
    with pytest.raises(RuntimeError, match="gone"):
        patience.check()


def test_on_a_cpu_nobody_shares():
    assert Sharing(torch.device("cpu")).name == Sharing().name == ""


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
    began = threading.Barrier(2, timeout=120)

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

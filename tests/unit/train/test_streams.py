"""A stream in place of a dataset: a fixed number of shards, each read once whoever reads it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from sublet import train
from sublet.errors import BadInput, InvalidValue
from sublet.train.sessions.options import Options
from sublet.train.streams.shard import Shard, copied
from sublet.train.streams.streamed import streamed_of
from sublet_lab.threads_mesh import Threads, ThreadsMesh
from tests.rigs.streams import Kept, Numbers, given, order_of, streamed, through_a_checkpoint


def numbers(rows):
    return [row[0] for row in rows]


def test_waves_of_loader_workers_give_what_one_process_reads_shard_by_shard():
    samples = streamed(Numbers(), loader_workers=2)
    assert [numbers(given(samples, step, 0, 1)) for step in range(5)] == order_of(5, waves=2)


def test_another_width_and_a_step_again_give_the_same_rows_by_loader_workers():
    calm = streamed(Kept(), loader_workers=2)
    expected = [given(calm, step, 0, 1) for step in range(8)]
    one, other = streamed(Kept(), loader_workers=2), streamed(Kept(), loader_workers=2)
    found = [given(one, step, 0, 1) for step in range(3)]
    given(one, 3, 0, 1)  # never applied
    other.load_state_dict(through_a_checkpoint(one.state_dict()))
    found += [given(one, step, 0, 2) + given(other, step, 1, 2, micro_batch=2) for step in range(3, 6)]
    found += [given(other, step, 0, 1) for step in range(6, 8)]
    assert found == expected
    assert len({row[1] for rows in found for row in rows}) == 48  # and all have drawn something else


def test_all_members_learn_where_each_shard_is_and_one_that_gets_another_reads_no_more_than_since_then():
    workers, step = [streamed(Kept()) for _ in range(2)], 0
    for step in range(104):
        for rank, worker in enumerate(workers):
            given(worker, step, rank, 2)
        if step == 100:
            threads = Threads()
            meshes = ThreadsMesh.all_of(threads, 2)
            pairs = list(zip(workers, meshes, strict=True))
            works = {str(mesh.rank): lambda w=worker, m=mesh: w.exchange(m, 101) for worker, mesh in pairs}
            assert not any(threads.run(works).values())
    for worker in workers:
        marks = worker.state_dict()["marks"]
        assert {number: mark["position"] for number, mark in marks.items()} == {0: 100, 1: 201, 2: 100, 3: 201}
    assert numbers(given(workers[1], 104, 0, 1)) == order_of(105)[104]
    shards = workers[1]._sources[0]._loader.dataset._shards
    assert [shards[number]._dataset.begun for number in range(4)] == [[100], [201], [0], [0]]


def test_more_workers_than_lanes_have_nothing_and_nobody_is_counted_who_has():
    samples = streamed(Numbers(), batch=6)
    assert [len(given(samples, 0, rank, 6)) for rank in range(6)] == [0, 1, 2, 0, 1, 2]
    assert samples.holders(6, 6) == 4


def shard_of(dataset, number=1, count=3, keep=4, said=None):
    say = (lambda kind, text: said.append(text)) if said is not None else (lambda kind, text: None)
    return Shard(dataset, number, count, seed=5, init=None, keep=keep, say=say)


def rows_of(shard, count):
    return [shard.read() for _ in range(count)]


def test_a_dataset_with_a_state_goes_on_from_its_mark_and_one_without_is_counted():
    straight = shard_of(Kept())
    straight.seek(0, None)
    expected = rows_of(straight, 9)
    first = shard_of(Kept())
    first.seek(0, None)
    rows_of(first, 5)
    mark, said = through_a_checkpoint(first.mark()), []
    second = shard_of(Kept(), said=said)
    second.seek(7, mark)
    assert rows_of(second, 2) == expected[7:]
    assert second._dataset.begun == [5]
    second = shard_of(Kept())
    second.seek(2, mark)  # which is past that
    assert rows_of(second, 2) == expected[2:4]
    assert not said
    counted = shard_of(Numbers(), said=said)
    counted.seek(7, None)
    assert rows_of(counted, 2) == expected[7:]
    assert len(said) == 1
    assert "7 samples" in said[0]
    assert counted.mark() is None


def test_a_shard_goes_back_within_its_memory_and_from_its_beginning_beyond_it():
    shard = shard_of(Kept(), keep=3)
    shard.seek(0, None)
    expected = rows_of(shard, 8)
    opened = shard._dataset
    shard.seek(5, None)
    assert shard.mark() is None  # the dataset is further on
    assert rows_of(shard, 3) == expected[5:]
    assert shard._dataset is opened
    shard.seek(2, None)
    assert rows_of(shard, 6) == expected[2:]
    assert shard._dataset is not opened


def test_an_iterator_may_keep_the_state_itself():
    class Iterator:
        def __init__(self):
            self.at = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.at += 1
            return self.at - 1

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    class Dataset(IterableDataset):
        def __iter__(self):
            return Iterator()

    shard = shard_of(Dataset())
    shard.seek(0, None)
    rows_of(shard, 3)
    other = shard_of(Dataset())
    other.seek(4, shard.mark())
    assert rows_of(other, 2) == [4, 5]


@pytest.mark.parametrize("dataset", [Numbers, Kept])
def test_a_shard_that_ends_begins_anew_and_goes_on_so_after_a_mark(dataset):
    said = []
    shard = shard_of(dataset(8), said=said)  # of 1, 4, 7
    shard.seek(0, None)
    found, marks = [], []
    for _ in range(8):
        found.append(shard.read())
        marks.append(shard.mark())
    assert numbers(found) == [1, 4, 7, 1, 4, 7, 1, 4]
    assert len({row[1] for row in found}) == 8  # each pass draws anew
    assert [text for text in said if "ended after 3" in text]
    for at in (3, 5):
        other = shard_of(dataset(8))
        other.seek(at, marks[at - 2])
        assert rows_of(other, 8 - at) == found[at:]


class Shuffled(Kept):
    """In another order in each pass, which is drawn with its first sample: so a generator does it."""

    def numbers(self):
        numbers = super().numbers()
        return [numbers[place] for place in torch.randperm(len(numbers)).tolist()]


class Ordered(Shuffled):
    """The order is drawn before the first sample is asked for."""

    def __iter__(self):
        self.begun.append(self.at)
        numbers = self.numbers()
        return self.rows(numbers)

    def rows(self, numbers):
        while self.at < len(numbers):
            self.at += 1
            yield self.sample(numbers[self.at - 1])
        self.at = 0


@pytest.mark.parametrize("dataset", [Shuffled, Ordered])
def test_a_pass_that_began_before_a_mark_has_its_own_order_after_it(dataset):
    """And so has each that follows."""
    shard = shard_of(dataset(90))  # 30 numbers
    shard.seek(0, None)
    found, marks = [], []
    for _ in range(120):
        found.append(shard.read())
        marks.append(shard.mark())
    passes = [numbers(found[start : start + 30]) for start in range(0, 120, 30)]
    assert all(sorted(each) == list(range(1, 90, 3)) for each in passes)
    assert len({tuple(each) for each in passes}) == 4
    for at in (10, 40, 75):  # in the first, the second and the third
        other = shard_of(dataset(90))
        other.seek(at, through_a_checkpoint(marks[at - 2]))
        assert other._dataset.begun == [(at - 1) % 30]  # and not read from its beginning
        assert rows_of(other, 120 - at) == found[at:]


def test_a_shard_without_samples_is_an_error_that_names_it():
    shard = shard_of(Numbers(1))
    shard.seek(0, None)
    with pytest.raises(InvalidValue, match=r"shard 1 of Numbers gave no sample"):
        shard.read()


def test_the_dataset_is_cut_up_by_worker_init_fn_as_pytorch_documents_it():
    class Range(IterableDataset):
        start, step = 0, 1

        def __iter__(self):
            return iter(range(self.start, 10**6, self.step))

    def init(number):
        info = get_worker_info()
        assert info.id == number
        info.dataset.start, info.dataset.step = number, info.num_workers

    loader = DataLoader(Range(), batch_size=6, num_workers=0, worker_init_fn=init)
    samples = train_stream(loader)
    found = [samples.load(0, piece).tolist() for step in range(3) for piece in samples.pieces(step * 6, 6, 0, 1, None)]
    assert found == order_of(3)


def train_stream(loader, **more):
    return streamed_of(loader, Options(**({"global_batch": 6, "steps": 100, "shards": 4} | more)), None)


class Unaware(IterableDataset):
    def __iter__(self):
        return iter(range(100))


class Locked(IterableDataset):
    def __init__(self):
        self.lock = threading.Lock()

    def __iter__(self):
        return iter(())


def test_a_dataset_that_never_asks_which_shard_it_is_is_refused():
    samples = train_stream(DataLoader(Unaware(), batch_size=6))
    with pytest.raises(InvalidValue, match="get_worker_info"):
        samples.load(0, next(samples.pieces(0, 6, 0, 1, None)))


@pytest.mark.parametrize(
    ("loader", "more", "word"),
    [
        (lambda: DataLoader(Numbers(), 6), {"steps": None, "epochs": 2}, "steps"),
        (lambda: DataLoader(Numbers(), 6), {"scheduler_every": "epoch"}, "scheduler_every"),
        (lambda: DataLoader(Numbers(), batch_size=None), {}, "batch_size"),
        (lambda: DataLoader(Locked(), 6), {}, "cannot be copied"),
        (lambda: DataLoader(Numbers(), 6), {"shards": 0}, "shards"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(loader, more, word):
    with pytest.raises(InvalidValue, match=word):
        train_stream(loader(), **more)


def test_fewer_shards_than_workers_at_the_widest_are_refused(monkeypatch):
    monkeypatch.setenv("SUBLET_MAX_WORKERS", "5")
    with pytest.raises(InvalidValue, match="at least 5"):
        train_stream(DataLoader(Numbers(), 6))
    train_stream(DataLoader(Numbers(), 6), shards=5)
    train_stream(DataLoader(Numbers(), 3), global_batch=3, shards=3)  # no more samples than that


def test_what_is_mapped_is_shared_and_what_changes_is_not(tmp_path):
    data = Numbers()
    np.save(tmp_path / "a.npy", np.arange(4))
    data.mapped, data.seen = np.load(tmp_path / "a.npy", mmap_mode="r"), []
    copy = copied(data)
    assert copy.mapped is data.mapped
    assert copy.seen is not data.seen


def trained(directory, data, *, steps=30, global_batch=None, **more):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    session = train.session(
        model, optimizer, data, steps=steps, global_batch=global_batch, checkpoint_dir=directory, shards=4, **more
    )
    with session as s:
        for row in s:
            loss = model(torch.stack(row, 1).float() % 7).pow(2).mean()
            s.step(loss)
            losses.append((s.steps, loss.item()))
    return losses


@pytest.mark.parametrize("workers", [0, 2])
def test_a_session_goes_on_in_a_stream_where_it_was_to_the_bit(workers, tmp_path):
    def loader():
        return DataLoader(Kept(), batch_size=6, num_workers=workers)

    expected = trained(tmp_path / "calm", loader())
    assert [step for step, _ in expected] == list(range(1, 31))
    found = trained(tmp_path / "struck", loader(), steps=13)
    found += trained(tmp_path / "struck", loader())
    assert found == expected
    assert trained(tmp_path / "struck", loader(), steps=33)[0][0] == 31  # it may be trained further
    with pytest.raises(BadInput, match="shards=4, this has shards=3"):
        trained(tmp_path / "struck", loader(), global_batch=3)


def test_a_stream_without_a_loader_draws_no_numbers_of_the_script(tmp_path):
    expected = trained(tmp_path / "a", DataLoader(Numbers(), batch_size=6, num_workers=0))
    assert trained(tmp_path / "b", Numbers(), global_batch=6) == expected
    torch.manual_seed(1)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    given(streamed(Numbers()), 0, 0, 1)
    assert torch.equal(torch.rand(3), drawn)


def test_a_state_that_no_checkpoint_can_hold_is_an_error_early(tmp_path):
    class Odd(Kept):
        def state_dict(self):
            return {"at": object()}

    with pytest.raises(InvalidValue, match="at"):
        trained(tmp_path, DataLoader(Odd(), batch_size=6))
    assert not list(tmp_path.glob("step-*"))

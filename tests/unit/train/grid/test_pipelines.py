"""Atoms and the order in which parts work on them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.train.grid import pipeline  # noqa: E402
from sublet.train.grid.pipeline import Pipeline, UnitTimes, Work, atoms, schedule, share  # noqa: E402  # noqa: E402
from sublet.train.grid.stages import Staged, Stages  # noqa: E402
from sublet_lab.threads_mesh import Threads, ThreadsMesh  # noqa: E402
from tests.rigs.grids_of import seat_of  # noqa: E402
from tests.rigs.pipelines import pipeline_s  # noqa: E402

FEW = st.integers(1, 6)


@given(st.integers(0, 50), st.integers(0, 60), st.integers(1, 9), st.integers(1, 7))
def test_every_sample_is_in_one_atom_of_one_copy(offset, size, micro_batch, copies):
    found = atoms(offset, size, micro_batch)
    shares = [share(found, copy, copies) for copy in range(copies)]
    assert [atom for each in shares for atom in each] == list(found)
    assert [atom.start + at for atom in found for at in range(atom.count)] == list(range(offset, offset + size))
    assert all(1 <= atom.count <= micro_batch for atom in found)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(FEW, st.integers(0, 12))
def test_a_part_passes_each_atom_forward_and_then_backward_and_holds_no_more_than_it_must(parts, count):
    for part in range(parts):
        held, most, given_back = set(), 0, []
        for each in schedule(part, parts, count):
            if each.forward:
                assert each.atom not in held
                held.add(each.atom)
                most = max(most, len(held))
            else:
                held.remove(each.atom)
                given_back.append(each.atom)
        assert not held
        assert given_back == list(range(count))
        assert most <= parts - part


@given(FEW, st.integers(1, 12))
def test_equal_parts_take_atoms_and_parts_less_one(parts, count):
    """The usual formula of a pipeline's bubble."""
    assert pipeline_s([1] * parts, [2] * parts, count) == 3 * (count + parts - 1)


def test_units_are_timed_forward_and_have_their_share_of_the_backward():
    times = UnitTimes(4)
    assert times.of_an_atom() == ()
    times.forward_s[3:], times.backward_s, times.atoms = [2.0, 4.0, 6.0], 24.0, 2
    assert times.of_an_atom() == pytest.approx((0.0, 0.0, 0.0, 3.0, 6.0, 9.0)), (
        "36 s of two atoms, as one to two to three"
    )


class Clock:
    now_s = 0.0

    def monotonic(self):
        return self.now_s


class Takes(nn.Linear):
    def __init__(self, clock, seconds):
        super().__init__(1, 1)
        self._clock, self._seconds = clock, seconds

    def forward(self, x):
        self._clock.now_s += self._seconds
        return super().forward(x)


def test_a_part_times_what_it_runs_and_the_first_what_it_loads(monkeypatch):
    """What the last one loads is there while it waits."""
    clock = Clock()
    monkeypatch.setattr(pipeline, "WALL", clock)

    def load(_):
        clock.now_s += 10.0
        return torch.ones(1, 1), None

    def loss(output, _):
        clock.now_s += 100.0
        return output.sum()

    def taken_s(grid):
        threads, found = Threads(), {}
        meshes = ThreadsMesh.all_of(threads, grid.gpus)

        def trains(rank):
            stages = [Takes(clock, seconds) for seconds in (1.0, 2.0, 3.0, 4.0)]
            runs = Pipeline(Staged(Stages(stages[0], stages[1:3], stages[3])), lambda _: None)
            runs.train(meshes[rank], seat_of(rank, grid, 2), atoms(0, 1, 1), 1, Work(load, loss))
            found[rank] = runs.times.forward_s, runs.times.atoms

        ended = threads.run({rank: lambda rank=rank: trains(rank) for rank in range(grid.gpus)})
        assert set(ended.values()) == {None}
        return found

    assert taken_s(Grid(1, 1)) == {0: ([11.0, 2.0, 3.0, 104.0], 1)}
    assert taken_s(Grid(1, 2)) == {0: ([11.0, 2.0, 0.0, 0.0], 1), 1: ([0.0, 0.0, 3.0, 104.0], 1)}

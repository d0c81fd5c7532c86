"""Atoms and the order in which parts work on them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid import pipeline  # noqa: E402
from sublet.train.grid.atoms import atoms, schedule, share  # noqa: E402
from sublet.train.grid.pipeline import Pipeline, UnitTimes, Work  # noqa: E402
from sublet.train.grid.stages import Seat, Staged, Stages  # noqa: E402
from sublet_lab.threads_mesh import Threads, ThreadsMesh  # noqa: E402
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


def test_a_micro_batch_of_nothing_is_refused():
    with pytest.raises(InvalidValue, match="micro_batch"):
        atoms(0, 4, 0)


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
    clock = Clock()
    monkeypatch.setattr(pipeline, "WALL", clock)
    staged = Staged(Stages(Takes(clock, 1.0), [Takes(clock, 2.0), Takes(clock, 3.0)], Takes(clock, 4.0)))

    def load(_):
        clock.now_s += 10.0
        return torch.ones(1, 1), None

    def loss(output, _):
        clock.now_s += 100.0
        return output.sum()

    runs = Pipeline(staged, lambda _: None)
    mesh, seat = ThreadsMesh.all_of(Threads(), 1)[0], Seat.of(0, Grid(1, 1), 2)
    runs.train(mesh, seat, atoms(0, 2, 1), 2, Work(load, loss))
    assert runs.times.forward_s == [22.0, 4.0, 6.0, 208.0]
    assert runs.times.atoms == 2

"""Whoever asks that compiled functions run as they are, in whatever order they are done: after the last it is over."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.train.grid.absent import Absence  # noqa: E402


def test_two_parts_in_one_process_leave_the_compiler_as_it_was():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    double = torch.compile(lambda x: x * 2, backend=backend)
    one, other = Absence(), Absence()
    one.cast()
    other.cast()
    one.cast()  # another forward, before it was told of the end of the last
    one.lift()
    double(torch.ones(3))
    other.lift()
    other.end()  # of a forward that ended after its shadow
    assert not graphs
    assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))
    assert len(graphs) == 1

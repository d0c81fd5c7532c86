"""Torch's random numbers are of each rank: a checkpoint has those of all, and each goes on with its own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.train.link.following import at_once  # noqa: E402
from sublet.train.link.peers import PeerGroup  # noqa: E402
from sublet.wire.messages import Regroup  # noqa: E402
from tests.rigs.drawing_ranks import drawn_with_a_loop, drawn_with_a_session  # noqa: E402
from tests.rigs.little_network import adam, data, network  # noqa: E402
from tests.rigs.ranks import in_group  # noqa: E402

CUT = 5


@pytest.mark.parametrize("draws", [drawn_with_a_session, drawn_with_a_loop])
def test_each_rank_goes_on_drawing_where_it_was_and_a_newcomer_draws_what_nobody_drew(draws, tmp_path):
    whole = in_group(2, draws, None if draws is drawn_with_a_loop else 99, None)
    before = in_group(2, draws, CUT, tmp_path)
    after = in_group(3, draws, 99, tmp_path)
    assert [{**a, **b} for a, b in zip(before, after, strict=False)] == whole
    assert min(after[0]) == CUT - 1  # the last checkpoint was of there
    every = [each for found in (*whole, after[2]) for each in found.values()]
    assert len(set(every)) == len(every) == 2 * 8 + 8 - min(after[0])


def test_what_was_saved_of_ranks_is_handed_to_nobody_who_comes_later():
    """A rank may be another worker's by then, which goes on drawing where it is."""
    model = network()
    way = train.session(model, adam(model), data(), global_batch=16, epochs=1)._strategy
    for leaves_it in (
        lambda: way.members._new_group(Regroup(worker_id="w", generation=2, rank=0, world=2)),
        lambda: at_once(way.members.share(PeerGroup(), [0])),
        lambda: way.writing.tick(0.0, PeerGroup(world=2, rank=1), asked=False, agreed=False),
    ):
        way.state.rng = torch.zeros(2, 3)
        leaves_it()
        assert way.state.tree(way.progress)["rng"] is None

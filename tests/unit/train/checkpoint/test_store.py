"""Where a session keeps its checkpoints: a directory of its own is not lost with a node, or it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from sublet import train
from sublet.errors import InvalidValue
from sublet.train.checkpoint.checkpoints import newest
from sublet.train.checkpoint.store import checkpoint_place
from sublet.wire.files import DISK
from tests.rigs.little_network import adam, data, loss_of, network


def carried(place):
    return {"SUBLET_CHECKPOINT_DIR": str(place), "SUBLET_CHECKPOINT_TIER": DISK}


@pytest.mark.parametrize(
    ("asked", "env", "chosen"),
    [
        (None, {}, None),
        (None, {"SUBLET_CHECKPOINT_DIR": "/given"}, Path("/given")),
        ("/own", {}, Path("/own")),
        ("/own", {"SUBLET_CHECKPOINT_DIR": "/given"}, Path("/own")),  # on a disk that all see
        ("/own", carried("/given"), Path("/given")),
        ("/given/", carried("/given"), Path("/given")),
        (None, carried("/given"), Path("/given")),
    ],
)
def test_a_directory_of_a_scripts_own_counts_unless_it_would_be_lost_with_the_node(asked, env, chosen, capsys):
    assert checkpoint_place(asked, env) == chosen
    assert ("lost with this node" in capsys.readouterr().err) == (asked == "/own" and chosen == Path("/given"))


def test_a_session_with_a_directory_of_its_own_saves_where_the_agent_carries_from(tmp_path, monkeypatch):
    for name, value in carried(tmp_path / "given").items():
        monkeypatch.setenv(name, value)
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, checkpoint_dir=tmp_path / "own") as s:
        for batch in s.batches(epochs=1):
            s.step(loss_of(model, batch))
    assert newest(tmp_path / "given") is not None
    assert not (tmp_path / "own").exists()


def test_checkpoints_that_lie_in_it_already_are_not_passed_over_in_silence(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_CHECKPOINT_DIR", str(tmp_path / "own"))
    model = network()
    with train.session(model, adam(model), data(), global_batch=16) as s:
        for batch in s.batches(epochs=1):
            s.step(loss_of(model, batch))
    with pytest.raises(InvalidValue, match=r"checkpoint\.uri"):
        checkpoint_place(tmp_path / "own", carried(tmp_path / "given"))

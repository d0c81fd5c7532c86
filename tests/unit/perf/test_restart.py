from __future__ import annotations

import pytest

from sublet.errors import InvalidValue, UnknownName
from sublet.perf.restart import Restart, h200_restart, published_restart_s


def test_published_restarts_are_as_published():
    assert published_restart_s("imagenet") == 250.0
    assert published_restart_s("bert", "boa-aws") == 300.0
    assert published_restart_s("ncf", "pollux") == 30.0
    with pytest.raises(UnknownName, match="yolov3"):
        published_restart_s("yolo")
    with pytest.raises(UnknownName, match="ncf"):
        published_restart_s("ncf", "boa-aws")
    with pytest.raises(UnknownName, match="source"):
        published_restart_s("ncf", "boa")


def test_a_restart_is_fixed_time_plus_bytes_over_bandwidth():
    restart = Restart(fixed_s=10.0, state_bytes=6e9, write_bytes_per_s=2e9, read_bytes_per_s=3e9)
    assert (restart.save_s, restart.load_s) == (3.0, 12.0)
    assert (Restart(fixed_s=30.0).save_s, Restart(fixed_s=30.0).load_s) == (0.0, 30.0)


def test_the_measured_restart_adds_up():
    restart = h200_restart("gpt2-1.5b")
    assert restart.save_s == pytest.approx(15.155)
    assert restart.load_s == pytest.approx(4.612 + 0.412 + 20.51 + 10.854)
    with pytest.raises(UnknownName, match=r"gpt2-1\.5b"):
        h200_restart("gpt2-2b")


def test_nonsense_is_refused():
    with pytest.raises(InvalidValue, match="fixed_s"):
        Restart(fixed_s=-1.0)
    with pytest.raises(InvalidValue, match="read_bytes_per_s"):
        Restart(fixed_s=1.0, read_bytes_per_s=0.0)

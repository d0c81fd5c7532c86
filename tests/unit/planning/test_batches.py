"""The batch that goes with a width is the speed's to say, and it hears which one the job has."""

from __future__ import annotations

from types import SimpleNamespace

from sublet.domain.shape import Shape
from sublet.planning.widths import batch_for

POOL = SimpleNamespace(gpu="T4", gpus_per_node=4)


class Choosy:
    def __init__(self):
        self.asked = []

    def best_batch(self, gpu, spread, had):
        self.asked.append((gpu, spread, had))
        return 512


def test_a_speed_that_knows_batches_is_asked_with_the_one_that_the_job_has():
    speed = Choosy()
    state = SimpleNamespace(job=SimpleNamespace(speed=speed))
    assert batch_for(state, POOL, 6, Shape("T4x4", 4, batch=256)) == 512
    assert batch_for(state, POOL, 6, None) == 512
    assert speed.asked == [("T4", (4, 2), 256), ("T4", (4, 2), None)]


def test_a_speed_that_knows_none_leaves_it_to_the_script():
    state = SimpleNamespace(job=SimpleNamespace(speed=object()))
    assert batch_for(state, POOL, 6, Shape("T4x4", 4, batch=256)) is None

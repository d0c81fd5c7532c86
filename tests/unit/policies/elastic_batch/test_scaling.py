"""How a job scales when its batch may grow with its GPUs, at the edges."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.errors import Infeasible, InvalidValue
from sublet.perf.steptime import RingStep
from sublet.policies.elastic_batch.scaling import BatchScaling, doubling


class Slow:
    """Two seconds for each sample of a GPU, whatever their number."""

    def times(self, spread, local):
        seconds = 2.0 * local
        return seconds, seconds


def job(**facts):
    return BatchScaling(**{"step": {"T4": Slow()}, "batches": (4, 8, 16), "max_local": {"T4": 4}, **facts})


def test_a_gpu_of_less_than_a_sample_a_second_is_the_measure_all_the_same():
    assert job().rate_at(4, "T4", (1,)) == pytest.approx(0.5)
    assert [job().factor("T4", (gpus,)) for gpus in (1, 2, 4)] == pytest.approx([1.0, 2.0, 4.0])
    assert [job().batch("T4", (gpus,)) for gpus in (1, 2, 4)] == [4, 4, 4]  # the smallest of equals


def test_a_kind_that_was_never_measured_has_no_speed_and_no_factor():
    assert job().factor("A100", (2,)) == 0.0
    assert job().rate_at(4, "A100", (1,)) == 0.0


def test_where_one_gpu_cannot_run_the_factor_is_the_number_of_gpus():
    class Together(Slow):
        def times(self, spread, local):
            seconds, _ = super().times(spread, local)
            return (np.full_like(seconds, np.inf) if sum(spread) == 1 else seconds), seconds

    assert job(step={"T4": Together()}).factor("T4", (2,)) == 2.0


def test_a_batch_goes_on_as_many_gpus_as_it_has_samples_and_no_more():
    small = job(batches=(4,))
    assert small.rate_at(4, "T4", (4,)) == pytest.approx(4 / 2.0)
    assert small.rate_at(4, "T4", (4, 1)) == 0.0
    assert small.rate_at(4, "T4", ()) == 0.0


def test_what_does_not_fit_the_memory_takes_more_gpus():
    assert job().rate_at(8, "T4", (1,)) == 0.0
    assert job().rate_at(8, "T4", (2,)) == pytest.approx(1.0)
    assert job().fixed(16).least_gpus("T4", 8) == 4
    assert job().fixed(16).least_gpus("T4", 4) == 4  # and that is all there is
    assert job(batches=(4,)).least_gpus("T4", 1) == 1  # however slow
    with pytest.raises(Infeasible):
        job().fixed(16).least_gpus("T4", 3)


def test_batches_double_up_to_the_largest_and_nonsense_is_refused():
    assert doubling(32, 130) == (32, 64, 128)
    assert doubling(32, 32) == (32,)
    for nonsense in ((64, 32), (0, 8)):
        with pytest.raises(InvalidValue):
            doubling(*nonsense)
    for facts in ({"batches": ()}, {"batches": (8, 8)}, {"step": {}}, {"max_local": {}}):
        with pytest.raises(InvalidValue):
            job(**facts)
    with pytest.raises(InvalidValue):
        job().fixed(5)


def test_a_step_takes_its_samples_and_the_exchange_of_gradients():
    """A second of work, and two GPUs send half of a gigabyte to one another, there and back, at one a second."""
    step = RingStep(alpha_s=1.0, beta_s=0.0, gradient_bytes=1e9, intra_bytes_per_s=1e9, inter_bytes_per_s=5e8)
    speed = BatchScaling(step={"T4": step}, batches=(64,), max_local={"T4": 64})
    assert speed.rate_at(64, "T4", (1,)) == 64.0
    assert speed.rate_at(64, "T4", (2,)) == 32.0
    assert speed.rate_at(64, "T4", (1, 1)) == pytest.approx(64.0 / 3.0)  # between nodes at half of that
    assert (speed.factor("T4", (1,)), speed.factor("T4", (2,))) == (1.0, 0.5)


def test_unless_told_otherwise_as_few_gpus_as_hold_a_batch_are_on_one_node():
    class OneNode(Slow):
        def times(self, spread, local):
            seconds, _ = super().times(spread, local)
            return (seconds if len(spread) == 1 else np.full_like(seconds, np.inf)), seconds

    near = job(step={"T4": OneNode()}).fixed(8)
    assert near.least_gpus("T4", 4) == near.least_gpus("T4", 4, 2) == 2
    with pytest.raises(Infeasible):
        near.least_gpus("T4", 4, 1)

"""What shapes of one pool keep: by their steady part, grid and pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.job import Change
from sublet.domain.offer import Market
from sublet.domain.plan import OfferState
from sublet.domain.shape import Grid, Shape
from sublet.perf.preemption import NO_RECLAIMS, Reclaims, believe_reclaims, shapes_kept, spot_speed, toll_of
from sublet.perf.speedup import Amdahl
from sublet.testing.values import EvenPauses, a_job, an_offer
from tests.rigs.sizes import examples

reclaims = st.builds(
    Reclaims,
    per_h=st.floats(0.01, 20.0),
    share=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    notice_s=st.sampled_from([0.0, 20.0, 120.0]),
    boot_s=st.sampled_from([0.0, 60.0, 300.0]),
)
pauses = {
    "restart_s": st.sampled_from([0.0, 15.0, 180.0]),
    "checkpoint_every_s": st.sampled_from([60.0, 600.0, math.inf]),
    "checkpoint_write_s": st.sampled_from([0.0, 10.0, 60.0]),
    "speed": st.just(Amdahl(parallel=0.95)),
}
plain_jobs, sturdy_jobs = st.builds(a_job, **pauses), st.builds(a_job, survives=st.just(True), **pauses)
PER_NODE = 4
WIDTHS = [Shape("p", gpus) for gpus in (1, 3, 4, 8, 17, 32)]
STEADY = [Shape("p", 16, steady=steady) for steady in (0, 4, 8, 12, 16)]


def kept(seen, job, shapes, per_node=PER_NODE):
    return shapes_kept(seen, job, "T4", per_node, shapes)


@given(reclaims, plain_jobs)
def test_with_nothing_on_demand_a_plain_job_keeps_what_its_nodes_keep_to_the_digit(seen, job):
    nodes = [-(-shape.gpus // PER_NODE) for shape in WIDTHS]
    assert kept(seen, job, WIDTHS).tolist() == spot_speed(seen, job, nodes).tolist()
    assert toll_of(seen, job, "T4", PER_NODE, WIDTHS).kept_C.tolist() == spot_speed(seen, job, nodes).tolist()


@given(reclaims, st.one_of(plain_jobs, sturdy_jobs))
def test_all_on_demand_keeps_all_exactly(seen, job):
    assert kept(seen, job, [Shape("p", 5, steady=5), Shape("p", 8, steady=8)]).tolist() == [1.0, 1.0]
    assert kept(NO_RECLAIMS, job, WIDTHS).tolist() == [1.0] * len(WIDTHS)


@settings(max_examples=examples(200))
@given(reclaims, st.one_of(plain_jobs, sturdy_jobs))
def test_more_on_demand_never_slows_a_job_down(seen, job):
    found = kept(seen, job, STEADY)
    assert (np.diff(found) >= -1e-9).all()
    assert ((found >= 0.0) & (found <= 1.0 + 1e-12)).all()


@settings(max_examples=examples(200))
@given(reclaims, sturdy_jobs)
def test_survivors_never_slow_a_job_down(seen, job):
    assert (kept(seen, job, WIDTHS) >= kept(seen, replace(job, survives=False), WIDTHS) * (1 - 1e-9) - 1e-12).all()


@given(reclaims, sturdy_jobs)
def test_one_copy_on_demand_redoes_nothing_and_writes_nothing(seen, job):
    job = replace(job, checkpoint_every_s=math.inf)
    found = toll_of(seen, job, "T4", 1, [Shape("p", 6, steady=1), Shape("p", 6, steady=3, grid=Grid(6))])
    assert found.none_left_C.tolist() == [0.0, 0.0]
    assert found.redone_C == pytest.approx(np.zeros(2), abs=1e-9)
    assert found.written_C.tolist() == [0.0, 0.0]


def test_a_part_of_a_grid_that_is_gone_is_redone_unless_the_pauses_of_the_job_restore_it():
    @dataclass(frozen=True)
    class Restore:
        lead_s = 0.0

        def pause_s(self, change: Change) -> float:
            return 60.0

    seen = Reclaims(per_h=0.5, boot_s=120.0)
    grids = Gridwise()
    job = a_job(speed=grids, restart_s=60.0, checkpoint_every_s=1800.0, survives=True)
    shape = [Shape("p", 4, grid=Grid(1, 4))]
    lost, restored = (toll_of(seen, each, "T4", 1, shape) for each in (job, replace(job, pauses=Restore())))
    assert lost.none_left_C[0] == restored.none_left_C[0] == 1.0
    assert lost.redone_C[0] > 0.1
    assert restored.redone_C[0] == 0.0
    assert restored.kept_C[0] == pytest.approx(math.exp(-4 * 0.5 / 3600 * (120.0 + 60.0)))


def test_who_restores_parts_trains_on_where_those_left_are_enough_for_a_copy():
    """A reclaim takes each of four nodes by the toss of a coin, and one copy needs two of them, whichever they are."""
    per_s, enough = 2 * 1e-3 / 3600, (4 + 6) / 16  # it takes one of them, or two

    @dataclass(frozen=True)
    class ByCopies(Gridwise):
        one: float = 0.0  # how fast one copy is
        copies: int = 2

        def bound_to(self, shape):
            return replace(self, copies=shape.grid.copies)

        def rate(self, gpu, spread, done):
            return 1.0 if self.copies > 1 else self.one

    def kept_by(one):
        job = a_job(speed=ByCopies(one=one), survives=True, pauses=EvenPauses(10.0), checkpoint_every_s=600.0)
        return kept(Reclaims(per_h=1e-3, share=0.5, boot_s=1200.0), job, [Shape("p", 4, grid=Grid(2, 2))], 1)[0]

    trained_s = 1200.0 - 10.0  # until new nodes are there, less a pause; the pause after that is made by who waits, too
    assert kept_by(0.5) - kept_by(0.0) == pytest.approx(per_s * enough * 0.5 * trained_s, rel=0.01)


@dataclass(frozen=True)
class Gridwise(Amdahl):
    """Amdahl's law over copies, in any parts."""

    parallel: float = 0.95

    def bound_to(self, shape):
        return self


def test_a_spare_makes_up_for_the_first_loss():
    seen = Reclaims(per_h=0.5, boot_s=900.0)

    @dataclass(frozen=True)
    class ByGrid(Amdahl):
        parallel: float = 1.0
        copies: int = 1

        def bound_to(self, shape):
            return ByGrid(copies=shape.grid.copies)

        def rate(self, gpu, spread, done):
            return float(self.copies)

    job = a_job(speed=ByGrid(), restart_s=30.0, survives=True, checkpoint_every_s=600.0)
    bare, spare = toll_of(seen, job, "T4", 1, [Shape("p", 8, grid=Grid(4, 2)), Shape("p", 9, grid=Grid(4, 2))]).slower_C
    assert bare > 0.03
    assert spare == 0.0


def test_of_both_markets_those_on_spot_are_believed_to_be_taken():
    def state(market, hazard):
        offer = an_offer(str(market), market=market, hazard_per_h=hazard, boot_s=60.0, pool="p")
        return OfferState(offer=offer, price=offer.price, limit=Limit(), held=0, available=None)

    both = [state(Market.ON_DEMAND, 0.0), state(Market.SPOT, 0.5)]
    assert believe_reclaims(both) == believe_reclaims(both[::-1]) == Reclaims(per_h=0.5, boot_s=60.0)
    assert believe_reclaims(both[:1]) == NO_RECLAIMS

"""How many parts a model needs at least, by memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.seats import even_ends
from sublet.perf.part_memory import PartMemory

BLOCKS = (10,) * 12  # bytes of weights and moments


def test_what_nobody_has_said_fits():
    assert PartMemory().least((), 8) == 1
    assert PartMemory(device_bytes=1).least((), 8) == 1
    assert PartMemory().least(BLOCKS, 8) == 1


@pytest.mark.parametrize(("device", "least"), [(200, 1), (134, 1), (133, 3), (89, 3), (88, 4), (67, 4), (66, 6)])
def test_the_least_depth_is_that_at_which_a_part_and_one_that_is_kept_fit(device, least):
    """Uncut 120 of 0.9 of the device; in 2 parts two of 60 would take as much, in 3 two of 40, in 4 two of 30."""
    assert PartMemory(device_bytes=device).least(BLOCKS, 8) == least


def test_gradients_and_what_steps_took_beside_the_state_count():
    known = PartMemory(device_bytes=134)
    assert known.least(BLOCKS, 8) == 1
    assert replace(known, gradient_bytes=40).least(BLOCKS, 8) == 3  # a third more: 160, in 3 parts 106.7
    assert replace(known, beside_bytes=41).least(BLOCKS, 8) == 4  # 161, in 3 parts 121, in 4 parts 101
    assert replace(known, beside_bytes=121).least(BLOCKS, 8) is None


def test_a_depth_that_ran_out_of_memory_is_not_tried_again_whatever_was_counted():
    assert PartMemory(failed=2).least((), 8) == 3
    assert PartMemory(device_bytes=10**9, failed=2).least(BLOCKS, 8) == 3
    assert PartMemory(failed=8).least((), 8) is None
    assert "ran out of memory" in PartMemory(failed=2).describe((), 8)


def test_a_depth_at_which_steps_were_made_fits_whatever_was_counted_until_it_runs_out():
    tight = PartMemory(device_bytes=134, beside_bytes=41, worked=1)
    assert tight.least(BLOCKS, 8) == 1
    assert replace(tight, worked=3).least(BLOCKS, 8) == 3
    assert replace(tight, failed=1).least(BLOCKS, 8) == 4, "what is counted, again"


def test_a_part_has_a_block_at_least():
    assert PartMemory(device_bytes=5).least((10, 10), 8) is None


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 800), st.integers(0, 40), st.integers(1, 8)
)
def test_the_least_is_the_first_of_which_every_part_fits(blocks, device, beside, most):
    def holds(parts):
        begins = (0, *even_ends(len(blocks), parts))
        own = max(sum(blocks[low:high]) for low, high in pairwise(begins))
        return own * (2 if parts > 1 else 1) + beside <= 0.9 * device

    fitting = [parts for parts in range(1, min(most, len(blocks)) + 1) if holds(parts)]
    known = PartMemory(device_bytes=device, beside_bytes=beside)
    assert known.least(blocks, most) == min(fitting, default=None)
    assert PartMemory.from_facts(known.facts()) == known

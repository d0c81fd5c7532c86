"""A job whose GPUs come in blocks is on whole ones, or waits: a process for a node has all of its GPUs there."""

from __future__ import annotations

import pytest

from sublet.domain.actions import MakePlan
from sublet.domain.events import JobFinished
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.errors import InvalidValue
from sublet.kernel.invariants import check
from sublet.kernel.values_json import from_plain, to_plain
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

PAIR = an_offer("s", gpus=2, pool="p")


def settled(driver):
    while waiting := [order for order in driver.open if not isinstance(order, MakePlan)]:
        driver.answer(waiting[0])
        check(driver.kernel)
    return driver


def test_two_halves_of_two_nodes_are_no_whole_one_and_it_starts_when_there_is_one():
    driver = Driver([PAIR])
    names = ("x", "y", "z")
    for name in names:
        driver.submit(a_job(name, gpus=1, max_gpus=1))
    driver.plan(Plan(shapes={name: Shape("p", 1) for name in names}, hold={"s": 2}))
    settled(driver)
    placed = {name: driver.kernel.tenancy.placement[name][0][0] for name in names}
    (lonely,) = [name for name in names if list(placed.values()).count(placed[name]) == 1]
    crowded, other = [name for name in names if name != lonely]
    driver.tell(JobFinished(1.0, crowded))  # one GPU is free on each of the two nodes
    driver.submit(a_job("a", gpus=2, min_gpus=2, max_gpus=2, block=2))
    driver.plan(Plan(shapes={lonely: Shape("p", 1), other: Shape("p", 1), "a": Shape("p", 2)}, hold={"s": 2}))
    settled(driver)
    assert driver.kernel.jobs["a"].phase is Phase.WAITING
    driver.tell(JobFinished(2.0, other))
    settled(driver)
    assert driver.kernel.tenancy.placement["a"] == ((placed[other], 2),)


def test_a_job_in_blocks_has_one_width_and_survives_its_record():
    job = a_job("a", gpus=4, min_gpus=4, max_gpus=4, block=2)
    assert from_plain(type(job), to_plain(job)).block == 2
    for wrong in ({"gpus": 3, "min_gpus": 3, "max_gpus": 3}, {"gpus": 4, "min_gpus": 2, "max_gpus": 4}):
        with pytest.raises(InvalidValue, match="block"):
            a_job("a", block=2, **wrong)

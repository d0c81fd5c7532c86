"""Users of a simulated world speak HTTP with the shipped application; requests and answers may be lost with it."""

from __future__ import annotations

import gc
from typing import Any

from sublet_lab.world.border import Border
from sublet_lab.world.heap import World
from sublet_lab.world.loop import LoopProcess

BODY = {"job": {"name": "a", "argv": ["x"], "cwd": "/"}}


class Counting:
    """An API that counts its submissions."""

    def __init__(self):
        self.submitted = []

    async def submit(self, spec, *, key="", by=""):
        self.submitted.append((spec.name, key))
        return {"job_id": f"a-{len(self.submitted)}", "repeated": False}

    async def jobs(self, only=None):
        return []


def rig():
    world = World(1)
    process = LoopProcess(world, "controller", "ctl", lambda *_: None)
    api = Counting()
    heard: list[tuple[int, dict[str, Any]]] = []
    return world, process, api, Border(world, process, api), heard


def test_an_answer_comes_back_after_a_while():
    world, _, api, border, heard = rig()
    border.post("/v1/jobs", BODY, lambda *answer: heard.append(answer), key="k")
    world.run(world.now_s + 5.0)
    ((status, body),) = heard
    assert (status, body["job_id"]) == (201, "a-1")
    assert api.submitted == [("a", "k")]


def test_a_repeated_submission_is_one():
    world, _, api, border, heard = rig()
    for _ in range(3):
        border.post("/v1/jobs", BODY, lambda *answer: heard.append(answer), key="k")
    world.run(world.now_s + 5.0)
    assert len(heard) == 3
    assert len(api.submitted) == 1


def test_what_arrives_at_a_dead_controller_is_never_answered():
    world, process, api, border, heard = rig()
    border.post("/v1/jobs", BODY, lambda *answer: heard.append(answer))
    process.kill()
    world.run(world.now_s + 60.0)
    assert not heard
    assert not api.submitted


def test_a_promise_may_be_given_and_never_heard():
    world, _, api, border, heard = rig()
    border.deaf_until_s = world.now_s + 10.0
    border.post("/v1/jobs", BODY, lambda *answer: heard.append(answer), key="k")
    world.run(world.now_s + 20.0)
    assert api.submitted
    assert not heard


def test_errors_are_answers_too():
    world, _, _, border, heard = rig()
    border.get("/v1/nothing", lambda *answer: heard.append(answer))
    border.post("/v1/jobs", {"wrong": 1}, lambda *answer: heard.append(answer))
    world.run(world.now_s + 5.0)
    assert len(heard) == 2
    assert all(400 <= status < 500 and body["error"] for status, body in heard)


def test_a_fault_of_the_controller_is_answered_and_seen():
    world, process, _, border, heard = rig()
    border.get("/v1/budget", lambda *answer: heard.append(answer))  # this API has none
    world.run(world.now_s + 5.0)
    assert [status for status, _ in heard] == [500]
    gc.collect()
    assert any("AttributeError" in text for text in process.loop.failures)

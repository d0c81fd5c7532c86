"""Whatever Ray raises, wherever it is asked, comes out as an error of our own tree."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import pickle
import re
from pathlib import Path

import pytest

from sublet import errors
from sublet.errors import NoAnswer, RentFailed, SubletError
from sublet.runtime.providers.ray import cluster as ray_cluster
from sublet.runtime.providers.ray.cluster import Cluster, RayClaim, Stewards

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'sublet[ray]'")
from ray import exceptions as raised  # noqa: E402 - after the check

FAILURES = [
    raised.OutOfMemoryError("the node is running low on memory"),
    raised.ActorDiedError(),
    raised.ActorUnavailableError("away", None),
    raised.ActorUnschedulableError("nowhere"),
    raised.GetTimeoutError("too slow"),
    raised.ObjectLostError("00ff", "owner", "site"),
    raised.RaySystemError("the head is away"),
    raised.RpcError("unavailable"),
    raised.NodeDiedError("the node is dead"),
    raised.LocalRayletDiedError("the raylet is dead"),
    raised.WorkerCrashedError(),
    raised.PendingCallsLimitExceeded("too many"),
    raised.RuntimeEnvSetupError("no environment"),
    raised.TaskCancelledError(),
    ConnectionError("nobody there"),
    TimeoutError(),
    RuntimeError("Ray has been shut down"),
    ValueError("a name that is gone"),
    AttributeError("'NoneType' object has no attribute 'get_all'"),
]
IDS = [type(error).__name__ for error in FAILURES]


class Failing:
    """A Ray of which every part fails when it is called; its exceptions are real."""

    exceptions = raised

    def __init__(self, error):
        self._error = error

    def is_initialized(self):
        return False

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        raise self._error


class Answers:
    """An actor whose methods take the call, and fail later."""

    def __init__(self, error):
        self._error = error

    def __getattr__(self, name):
        return self

    def remote(self, *args, **kwargs):
        future = concurrent.futures.Future()
        future.set_exception(self._error)
        answer = type("Answer", (), {})()
        answer.future = lambda: future
        return answer


def a_cluster(monkeypatch, error):
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: Failing(error))
    cluster = Cluster("somewhere:1")
    cluster._gcs = Failing(error)
    return cluster


CALLS = {
    "connect": (),
    "host": None,
    "look": (),
    "steward": ("node", "space", (), 1.0),
    "stewards": ("space",),
    "ask_for": ({"CPU": 1.0},),
    "given": (None,),
    "withdraw": (None,),
    "call": None,  # below, through all that is asked of stewards
}


@pytest.mark.parametrize("error", FAILURES, ids=IDS)
@pytest.mark.parametrize("verb", [verb for verb, facts in CALLS.items() if facts is not None or verb == "host"])
def test_every_call_to_the_cluster_fails_in_our_own_words(monkeypatch, verb, error):
    cluster = a_cluster(monkeypatch, error)
    with pytest.raises(SubletError) as told:
        _ = getattr(cluster, verb) if CALLS[verb] is None else getattr(cluster, verb)(*CALLS[verb])
    assert str(told.value).isprintable() or "\n  next: " in str(told.value)


def test_no_call_to_the_cluster_is_left_out_above():
    public = [name for name in vars(Cluster) if not name.startswith("_")]
    assert sorted(public) == sorted(CALLS)
    sources = (Path(inspect.getfile(Cluster)).parent).glob("*.py")
    elsewhere = {path.name for path in sources if re.search(r"\.remote\(|ray\.get\(", path.read_text(encoding="utf-8"))}
    assert elsewhere == {"cluster.py"}, "who calls actors does it through Cluster.call"


@pytest.mark.parametrize("late", [False, True], ids=["at-once", "later"])
@pytest.mark.parametrize("error", FAILURES, ids=IDS)
def test_whatever_is_asked_of_a_steward_fails_in_our_own_words(monkeypatch, tmp_path, error, late):
    async def scene():
        cluster = a_cluster(monkeypatch, error)
        stewards = Stewards(cluster, "space", (), 1.0)
        actor = Answers(error) if late else Failing(error)
        monkeypatch.setattr(Cluster, "steward", lambda *_: actor)
        claim = RayClaim(node_id="n", offer_id="o", token="t", ray_node="r", began_s=0.0)  # noqa: S106
        for work in (stewards.warm("r"), stewards.begin(claim, {}, {})):
            with pytest.raises(SubletError):
                await work
        for _ in range(2):  # one that was started, and fails when it is asked
            stewards._cards["r"] = asyncio.create_task(_done(type("Card", (), {"actor": actor})()))
            for work in (stewards.end("r", "n"), stewards.begin(claim, {}, {}), stewards.warm("r")):
                with contextlib.suppress(SubletError):
                    await work
            assert await stewards.held_on("r") in ([], None)

    asyncio.run(scene())


async def _done(value):
    return value


def test_out_of_memory_is_no_clear_answer_and_says_who_did_it(monkeypatch):
    cluster = a_cluster(monkeypatch, raised.OutOfMemoryError("low on memory"))
    with pytest.raises(NoAnswer, match="memory monitor"):
        cluster.look()


def test_what_a_steward_raises_on_purpose_comes_out_as_it_was(monkeypatch):
    wrapped = raised.RayTaskError("begin", "a traceback", RentFailed("o", "sold out"))
    cluster = a_cluster(monkeypatch, wrapped.as_instanceof_cause())
    with pytest.raises(RentFailed, match="sold out") as told:
        cluster.look()
    assert type(told.value) is RentFailed
    assert "traceback" not in str(told.value)


def test_every_error_of_ours_survives_the_way_between_two_processes():
    told = RentFailed("o", "sold out", wait_s=3.0)
    again = pickle.loads(pickle.dumps(told))  # noqa: S301 - our own
    assert (type(again), str(again), again.wait_s) == (RentFailed, str(told), 3.0)
    value = pickle.loads(pickle.dumps(errors.InvalidValue("f", 1, "2")))  # noqa: S301
    assert (value.field, value.value, str(value)) == ("f", 1, str(errors.InvalidValue("f", 1, "2")))

"""Lines that anybody may have written: what cannot be read is refused in one way, and what is read can be used."""

from __future__ import annotations

import dataclasses
import json
import math
import typing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sublet.errors import BadInput
from sublet.runtime.agent.dialing import LineReader
from sublet.wire import messages
from sublet.wire.files import Travel
from sublet.wire.lines import from_line, to_line
from sublet.wire.messages import Profile

KINDS = [
    kind
    for union in (messages.ToAgent, messages.ToController, messages.FromWorkerMessage)
    for kind in typing.get_args(union)
]
NAMES = sorted({field.name for kind in KINDS for field in dataclasses.fields(kind)})
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([10**400, -(10**400), 1 << 63, -(1 << 63) - 1, (1 << 63) - 1, 10**4000]),
    st.floats(allow_nan=True, allow_infinity=True),
)
TEXTS = st.text(max_size=20) | st.sampled_from(["\ud800", "\x00", "n.1.2", "x" * 1000])
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)
FACTS = st.dictionaries(st.sampled_from(NAMES), TREES, max_size=12)
OBJECTS = st.builds(
    lambda kind, facts, inner: {**facts, "type": kind, **({} if inner is None else {"message": inner})},
    st.sampled_from([kind.__name__ for kind in KINDS]) | TEXTS,
    FACTS,
    st.none() | st.builds(lambda k, f: {**f, "type": k}, st.sampled_from([k.__name__ for k in KINDS]), FACTS),
)


def usable(message):
    """Every text can be written, every number reckoned with."""
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if dataclasses.is_dataclass(value):
            assert isinstance(value, messages.FromWorkerMessage | Profile | Travel)
            usable(value)
        elif isinstance(value, str):
            value.encode()
        elif type(value) is int:
            assert abs(value) < 1 << 63
        elif isinstance(value, float) and field.name not in ("loss", "noise"):
            assert abs(value) <= 1e15
            assert value >= 0 or field.name not in ("done", "work", "seconds", "blocked_s", "formed_s", "state_s")


@given(st.binary(max_size=300) | OBJECTS.map(lambda facts: json.dumps(facts).encode()))
@example(
    b'{"type":"Stepped","worker_id":"w","generation":1,"step":1,"epoch":0,"loss":0,"step_s":0,"done":1' + b"0" * 400
)
@example(b'{"type":"Warn","in_s":1' + b"0" * 400 + b"}")
@example(b'{"type":"Warn","in_s":1e999}')
@example(b'{"type":"Warn","in_s":NaN}')
@example(b'{"type":"Ready","worker_id":"\\ud800"}')
@example(b'{"type":"WorkerUp","worker_id":"w","pid":18446744073709551616}')
@example(b'{"type":"FromWorker","message":{"type":"Hello","node_id":"n","token":"t","pid":1}}')
@example(b'{"type":"FromWorker","message":' * 30_000)
@example(
    b'{"type":"Stepped","worker_id":"w","generation":1,"step":1,"epoch":0,"loss":0,"step_s":0,"done":1,'
    b'"profile":{"type":"Profile","pieces":2,"compute_s":0.1,"later":1}}'
)
@example(b"[" * 200_000)
@example(b'{"a":' * 100_000)
def test_no_line_does_anything_but_be_read_or_be_refused(line):
    refusal, message = "", None
    try:
        message = from_line(line)
    except BadInput as error:
        refusal = str(error)
    if message is None:
        assert 0 < len(refusal) < 600, "a refusal is short, whatever was said"
        assert refusal.isprintable()
        return
    usable(message)
    assert from_line(to_line(message)) == message or "NaN" in repr(to_line(message))


@given(st.lists(st.binary(max_size=60) | OBJECTS.map(lambda facts: json.dumps(facts).encode()), max_size=6))
def test_a_reader_never_fails_whatever_comes(lines):
    for read in LineReader().feed(b"\n".join([*lines, b""])):
        assert isinstance(read, BadInput) or dataclasses.is_dataclass(read)


@pytest.mark.parametrize("keeps", [[-1], [1.0], [True], ["1"], 1, {"0": 1}, [1 << 63], None])
def test_places_that_are_no_list_of_whole_numbers_from_0_on_are_refused(keeps):
    said = {"type": "Regroup", "worker_id": "w", "generation": 1, "rank": 0, "world": 1, "keeps": keeps}
    with pytest.raises(BadInput, match=r"keeps|64 bits"):
        from_line(json.dumps(said).encode())


def test_places_are_read_as_they_were_meant():
    said = messages.Regroup(worker_id="w", generation=1, rank=5, world=6, copy=1, part=2, copies=2, parts=3, keeps=(0,))
    assert from_line(to_line(said)) == said


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1.5])
def test_a_loss_that_diverges_can_be_told(loss):
    said = messages.Stepped(worker_id="w", generation=1, step=2, done=3.0, epoch=0, loss=loss, step_s=0.1)
    read = from_line(to_line(said))
    assert repr(read) == repr(said)


@pytest.mark.parametrize(
    "message",
    [
        messages.Damaged(worker_id="j.1.0", paths=("/ck/step-9",), why="cut short", step=-1),  # none is left
        messages.SaveFailed(worker_id="j.1.0", step=-1, why="disk full"),  # before the first
        messages.Offered(worker_id="j.1.0", generation=1, root="a", size_bytes=1),  # what a script saves has none
        messages.Newest(worker_id="j.1.0"),
    ],
    ids=["damaged", "save-failed", "offered", "newest"],
)
def test_there_may_be_no_step_yet(message):
    assert from_line(to_line(message)) == message


def test_what_a_worker_of_before_says_to_have_saved_is_where_the_controller_sees_it():
    said = messages.Saved(worker_id="j.1.0", step=9, done=9.0, seconds=0.1, blocked_s=0.0, size_bytes=1)
    facts = json.loads(to_line(said))
    assert facts.pop("tier") == "anchor"
    read = from_line(json.dumps(facts).encode())
    assert read == said
    assert read.safe
    assert not dataclasses.replace(said, tier="disk").safe

"""What was in the attributes of modules when a batch began and right after its step, at whoever takes a state later."""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections import OrderedDict, deque
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from sublet.train.grid.cutting import Cut  # noqa: E402
from sublet.train.grid.noting import BEGAN, STEPPED, UNTOLD, Noting  # noqa: E402
from sublet.train.grid.remembering import Remembering, merged, packed, unpacked  # noqa: E402
from sublet.train.reach import Place  # noqa: E402
from sublet.train.remembered import GONE, told_of_itself  # noqa: E402
from sublet.train.values import SMALL  # noqa: E402
from tests.rigs.sizes import examples  # noqa: E402


class Mode(enum.Enum):
    WARM, COLD = 1, 2


class Range(NamedTuple):
    low: float
    high: float


class Net(nn.Module):
    """With attributes that are there at first; others are made."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.number, self.pair, self.marks, self.table = 1.0, (1, "a"), [1, 2], {"a": 1}
        self.mode, self.range = Mode.WARM, Range(0.0, 1.0)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


NAMES = ["number", "pair", "marks", "table", "mode", "range", "made", "late"]
numbers = st.sampled_from([None, True, 0, 1, 0.5, -0.0, "a", "word"])
values = numbers | st.lists(numbers, max_size=3) | st.tuples(numbers, numbers)
values |= st.dictionaries(st.sampled_from(["a", "b", "fact", "numpy"]), numbers | st.lists(numbers, max_size=2))
values |= st.sampled_from([Mode.COLD, Mode.WARM, torch.float64, Range(0.5, 2.0)])
values |= st.builds(deque, st.lists(numbers, max_size=2)) | st.builds(OrderedDict, st.just({"b": [1]}))
changes = st.tuples(st.sampled_from(["set", "delete", "within"]), st.sampled_from(NAMES), st.integers(0, 1), values)


def change(model, how, name, where, value):
    """As a script does it, to the model or to a block of it."""
    module = [model, model.blocks[1]][where]
    if isinstance(value, Mode | Range) and (where or name != type(value).__name__.lower()):
        return  # where none of its class was at first, nobody can make one
    if how == "set":
        setattr(module, name, copy.deepcopy(value))
    elif how == "delete" and name in vars(module):
        delattr(module, name)
    elif how == "within" and name in vars(module):
        held = getattr(module, name)
        if isinstance(held, list | deque):
            held.append(value if isinstance(value, str) else 7)
        elif isinstance(held, dict):
            held["b"] = 7


def seen(model):
    """All of it, by value; and by its text, which tells 1 from True."""
    found = [{name: vars(each)[name] for name in NAMES if name in vars(each)} for each in (model, model.blocks[1])]
    return copy.deepcopy(found), repr(found)


def remembering(model):
    cut = Cut(model, "blocks")
    cut.learn(lambda: model(torch.zeros(2, 2)))
    return Remembering(cut, torch.optim.SGD(model.parameters(), lr=0.1), {})


@settings(max_examples=examples(300), deadline=None)
@given(*[st.lists(changes, max_size=6)] * 4, st.booleans())
def test_each_moment_is_as_it_was_at_who_takes_the_state_whatever_a_script_does_to_attributes(a, b, c, d, asked):
    """Made, deleted, set and changed within; so it is at who takes it from that one."""
    model = Net()
    gives = remembering(model)
    moments = {}
    for moment, lines in (("", a), (BEGAN, b), (STEPPED, c)):
        for each in lines:
            change(model, *each)
        if moment == BEGAN:
            gives.note_batch()
        elif moment == STEPPED:
            gives.note_step()
        moments[moment] = seen(model)
        if asked:  # as a checkpoint does, at any point
            gives.state(range(2))
    for each in d:
        change(model, *each)
    moments[""] = seen(model)
    for _ in range(2):
        state = gives.state(range(2))
        state = unpacked(packed(state)) if len(packed(state)) else state
        taker = Net()
        gives = remembering(taker)
        for moment in ("", BEGAN, STEPPED, "", STEPPED, BEGAN, ""):
            gives.lay(copy.deepcopy(state), moment=moment)
            assert seen(taker) == moments[moment]


def test_a_list_that_a_script_has_in_hand_is_the_one_that_is_laid_into_if_it_was_that_one():
    model, taker = Net(), Net()
    gives, takes = remembering(model), remembering(taker)
    gives.note_batch()
    model.marks.append(3)
    gives.note_step()
    model.table = {"b": 2}
    marks, table = taker.marks, taker.table
    state = gives.state(range(2))
    takes.lay(copy.deepcopy(state), moment=BEGAN)
    assert taker.marks is marks
    assert marks == [1, 2]
    takes.lay(copy.deepcopy(state), moment=STEPPED)
    assert (taker.marks, taker.marks is marks, taker.table) == ([1, 2, 3], True, {"a": 1})
    takes.lay(copy.deepcopy(state))
    assert (taker.table, table) == ({"b": 2}, {"a": 1})  # another object: what was there is somebody's


def test_nor_is_a_list_written_into_that_the_script_has_put_back():
    """Two lists in turn: what the other held then must not come into the one that is there now."""
    model, taker = Net(), Net()
    gives, takes = remembering(model), remembering(taker)
    first, marks = model.marks, taker.marks
    model.marks = [9]
    gives.note_batch()
    gives.note_step()
    model.marks = first
    takes.lay(gives.state(range(2)), moment=BEGAN)
    assert (taker.marks, marks) == ([9], [1, 2])


def noted(**facts):
    return dict(zip(facts, Noting([Place("here", facts)]).now().values, strict=True))


def test_what_is_large_or_holds_a_tensor_is_not_noted_nor_kept_alive():
    inside = [1]
    inside.append(inside)
    found = noted(
        few=[*range(SMALL)],
        many=[*range(SMALL + 1)],
        deep=[[1] * SMALL],
        endless=inside,
        tensor=torch.zeros(1),
        tensors=[torch.zeros(1)],
        thing=object(),
        nested={"a": ([1, 2], {"b"})},
    )
    assert [name for name, value in found.items() if value is UNTOLD] == [
        *("many", "deep", "endless", "tensor", "tensors", "thing")
    ]
    assert found["nested"] == {"a": ([1, 2], {"b"})}
    many = [*range(SMALL + 1)]
    assert not Noting([Place("here", {"many": many, "thing": object()})]).now().themselves


def test_a_name_that_another_takes_the_place_of_is_seen():
    """As many as before: their number alone says nothing."""
    facts = {"one": 1, "thing": object()}
    noting = Noting([Place("here", facts)])
    del facts["one"]
    facts["two"] = 2
    then = noting.now()
    assert [name for _, name in then.where] == ["thing", "two"]
    facts["two"] = 3
    assert then.since(lambda *_: True) == {"here": {"two": 2}}
    del facts["two"]
    assert then.gone() == [("here", "two")]


def test_what_was_made_and_could_not_come_back_is_not_taken_away():
    facts = {"one": 1}
    then = Noting([Place("here", facts)]).now()
    facts["opened"] = facts["made"] = True
    facts["thing"] = object()
    assert then.since(lambda _, name: name != "opened") == {"here": {"made": GONE}}


def test_a_tuple_that_cannot_change_may_be_followed_by_one_that_can():
    facts = {"pair": (1, 2)}
    noting = Noting([Place("here", facts)])
    noting.now()
    facts["pair"] = (1, [2])
    then = noting.now()
    facts["pair"][1].append(3)
    assert then.since(lambda *_: True) == {"here": {"pair": told_of_itself((1, [2]))}}


def test_what_was_not_noted_is_not_said_to_be_gone():
    """Nobody could make it again."""
    facts = {"thing": object(), "one": 1}
    then = Noting([Place("here", facts)]).now()
    facts.clear()
    assert then.gone() == [("here", "one")]


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    scale: float = 1.0


@pytest.mark.parametrize("kind", [Frozen, Slotted, types.SimpleNamespace])
@pytest.mark.parametrize("within", [False, True])
def test_settings_that_are_replaced_are_at_each_moment_those_of_then(kind, within):
    """In an attribute, or in a list in one, in every step; whoever takes the state may have other objects."""

    def a_net():
        model = Net()
        model.settings = [kind(scale=1.0)] if within else kind(scale=1.0)
        return model

    def put(model, scale):
        if within:
            model.settings[0] = kind(scale=scale)
        else:
            model.settings = kind(scale=scale)

    def scale_of(model):
        return (model.settings[0] if within else model.settings).scale

    model, taker = a_net(), a_net()
    gives, takes = remembering(model), remembering(taker)
    for step in range(1, 4):
        gives.note_batch()
        put(model, step + 0.25)  # in the step
        gives.note_step()
        put(model, step + 0.5)
    for _ in range(2):
        state = unpacked(packed(gives.state(range(2))))
        for moment, scale in {BEGAN: 2.5, STEPPED: 3.25, "": 3.5}.items():
            takes.lay(copy.deepcopy(state), moment=moment)
            assert scale_of(taker) == scale
        gives, taker = takes, a_net()
        takes = remembering(taker)


def test_settings_that_several_hold_are_noted_once_when_they_are_replaced():
    """Nor is the model noted again that they hold."""
    model = Net()
    model.settings = model.blocks[0].settings = types.SimpleNamespace(scale=1.0, owner=model)
    gives = remembering(model)
    for scale in (2.0, 3.0):
        gives.note_batch()
        gives.note_step()
        model.settings = model.blocks[0].settings = types.SimpleNamespace(scale=scale, owner=model)
        model.number = scale
    state = gives.state(range(2))
    assert [state[BEGAN], state[STEPPED]] == [{"module ": {"number": 2.0}, "module .settings": {"scale": 2.0}}] * 2


def test_of_two_places_of_one_name_each_is_compared_with_itself():
    one, other = {"a": 1}, {"a": 2}
    places = [Place("f closure", one), Place("f closure", other)]
    then = Noting(places).now()
    assert not then.since(lambda *_: True, places)


def test_one_list_of_which_two_workers_tell_is_one_at_who_takes_it_at_each_moment():
    model, taker = Net(), Net()
    gives, takes = remembering(model), remembering(taker)
    model.made = model.blocks[1].made = [1.0]
    gives.note_batch()
    gives.note_step()
    model.made[0] = 2.0
    state = merged([(rank, unpacked(packed(gives.state({rank})))) for rank in range(2)], {0: 0, 1: 1})
    for moment, value in {BEGAN: 1.0, STEPPED: 1.0, "": 2.0}.items():
        takes.lay(copy.deepcopy(state), moment=moment)
        assert taker.made == [value]
        assert taker.made is taker.blocks[1].made

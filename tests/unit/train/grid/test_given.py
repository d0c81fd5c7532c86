"""What functions hold that a script gives for steps is part of the state, or the same at all workers, or refused."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import io
import logging
import threading
import types
from functools import partial
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue, RanksDiffer  # noqa: E402
from sublet.train.grid.alike import Alike  # noqa: E402
from sublet.train.grid.given import Given, in_hand  # noqa: E402
from sublet.train.reach import places_of  # noqa: E402


def samples():
    dice = torch.Generator().manual_seed(4)
    return TensorDataset(torch.randn(16, 3, generator=dice), torch.randn(16, 1, generator=dice))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Criterion:
    def __init__(self, model, heat):
        self.model, self.heat = model, heat

    def __call__(self, batch):
        return self.heat * nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def named(self, batch):
        return self(batch)


def closure(model, heat):
    held = [heat]

    def criterion(batch):
        return held[0] * nn.functional.mse_loss(model(batch[0]), batch[1])

    criterion.held = held
    return criterion


def cool(criterion):
    if isinstance(criterion, Criterion):
        criterion.heat *= 0.9
    else:
        criterion.held[0] *= 0.9


def losses(choose, directory=None, *, epochs=5):
    """By step. `choose(model)`: what gives the function for a step, the lines behind it, and what else is in hand."""
    torch.manual_seed(3)
    model, seen = Net(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    of, after, *hand = choose(model)
    facts = {"parts": train.Blocks("blocks"), "global_batch": 4, "micro_batch": 4, "checkpoint_dir": directory}
    with train.session(model, optimizer, samples(), **facts) as s:
        for batch in s.batches(epochs=epochs):
            s.step(of(s, *hand), batch)
            seen[s.steps] = s.loss
            after(s)
    return seen


def in_turn(make, turn, *, cools_all):
    def choose(model):
        made = [make(model, 1.0 + number) for number in range(3)]

        def after(s):
            for each in made if cools_all else [made[turn(s.steps - 1)]]:
                cool(each)

        return (lambda s, *made: made[turn(s.steps)]), after, *made

    return choose


def assert_goes_on(choose, directory):
    """Ended at steps 4, 8 and 12, it is as if it had not been."""
    whole = losses(choose)
    losses(choose, directory, epochs=1)
    losses(choose, directory, epochs=2)
    losses(choose, directory, epochs=3)
    again = losses(choose, directory)
    assert {step: loss for step, loss in again.items() if step > 12} == {
        step: loss for step, loss in whole.items() if step > 12
    }


@pytest.mark.parametrize("make", [Criterion, closure])
@pytest.mark.parametrize("cools_all", [True, False])
@pytest.mark.parametrize(
    "turn", [lambda step: step % 3, lambda step: int(step > 2) + int(step > 9), lambda step: int(step > 9)]
)
def test_what_each_function_holds_that_is_given_for_a_step_is_in_checkpoints_before_it_is_given(
    tmp_path, make, cools_all, turn
):
    assert_goes_on(in_turn(make, turn, cools_all=cools_all), tmp_path)


def lambdas(model):
    base = closure(model, 1.0)

    def of(s, base):
        heat = 0.9**s.steps
        return lambda batch: heat * base(batch)

    return of, (lambda _: cool(base)), base


def partials(model):
    return (lambda s: partial(scaled, model, 0.9**s.steps)), lambda _: None


@pytest.mark.parametrize("choose", [lambdas, partials])
def test_what_is_made_for_every_step_of_what_all_know_goes_on(tmp_path, choose):
    assert_goes_on(choose, tmp_path)


def in_its_own_hands(directory, epochs, *, phased):
    """A loop with a number, or a function, that is its own, and that it goes on from."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = {"parts": train.Blocks("blocks"), "global_batch": 4, "micro_batch": 4, "checkpoint_dir": directory}
    heat, criterion = 1.0, closure(model, 1.0)
    with train.session(model, optimizer, samples(), **facts) as s:
        for batch in s.batches(epochs=epochs):
            if phased and s.steps == 2:
                criterion = closure(model, 0.5)
            s.step(criterion if phased else partial(scaled, model, heat), batch)
            heat *= 0.9
            cool(criterion)


def scaled(model, heat, batch):
    return heat * nn.functional.mse_loss(model(batch[0]), batch[1])


@pytest.mark.parametrize(("phased", "name"), [(True, "closure.<locals>.criterion"), (False, "partial of scaled")])
def test_what_no_state_can_make_again_is_refused_by_name(tmp_path, phased, name):
    in_its_own_hands(tmp_path, 2, phased=phased)
    theirs = 0.5 * 0.9**5 if phased else 0.9**7  # a long message is told to its end
    with pytest.raises(
        InvalidValue, match=rf"{name}.*make it before the loop.*; step 8 was made by .*{str(theirs)[:8]}\d*\]?$"
    ):
        in_its_own_hands(tmp_path, 3, phased=phased)


def test_a_later_function_that_calls_the_model_compiled_in_one_piece_is_refused():
    model = Net()
    compiled = torch.compile(model, backend="eager")

    def plain(batch):
        return model(batch[0]).square().mean()

    def later(batch):
        return compiled(batch[0]).square().mean()

    def run():
        optimizer, facts = torch.optim.SGD(model.parameters(), lr=0.1), {"global_batch": 4, "micro_batch": 4}
        with train.session(model, optimizer, samples(), parts=train.Blocks("blocks"), **facts) as s:
            for batch in s.batches(epochs=1):
                s.step(plain if s.steps == 0 else later, batch)

    with pytest.raises(InvalidValue, match=r"compiled = torch\.compile\(model\)"):
        run()


def own(_):
    """Given."""


def only_called():
    """By a loop, in its lines."""


class Trainer:
    def loss(self, _):
        """Given."""

    def fit(self, turns, log):
        log(only_called())
        first = self.loss, turns
        return one(own, first)

    def log(self, *_):
        """Called."""


def one(given, _):
    return in_hand(Trainer.fit.__code__), given


def test_what_a_loop_could_give_is_known_by_its_names():
    """From the call to the loop; what is only called, and what is further out, is not."""
    trainer, criterion = Trainer(), Criterion(None, 1.0)
    turns = {"a": criterion, "b": 1.0, "c": partial(own, 2), "d": torch.square, "e": Trainer}
    found, _ = trainer.fit(turns, trainer.log)
    method = {"fit.first.0": trainer.loss}
    assert found == {
        "one.given": own, "fit.own": own, "fit.self": trainer, "fit.turns.a": criterion, "fit.turns.c": turns["c"]
    } | method  # fmt: skip


def signs(*known):
    given = Given()
    given.know(places_of((f"known {number}", each) for number, each in enumerate(known)))
    return given.sign


def test_a_sign_says_which_it_is_and_what_no_state_knows_of_it():
    one, two, late = (closure(None, heat) for heat in (1.0, 1.0, 1.0))
    sign, factor = signs(one, two, criterion := Criterion(None, 1.0)), 1.0

    def anew():
        return lambda _: factor

    assert len({sign(one), sign(two), sign(late), sign(criterion), sign(anew())}) == 5
    before = [sign(each) for each in (one, criterion)], [sign(late), sign(anew())]
    for each in (one, late, criterion):
        cool(each)
    factor = 2.0
    assert [sign(each) for each in (one, criterion)] == before[0], "what is in it is part of the state"
    assert all(now != then for now, then in zip([sign(late), sign(anew())], before[1], strict=True))
    assert sign(anew()) == sign(anew())
    assert sign(criterion.named) == sign(criterion.named) != sign(Criterion(None, 1.0).named)
    assert sign(partial(one, heat=0.5)) == sign(partial(one, heat=0.5)) != sign(partial(one, heat=0.6))
    assert sign(partial(one, {"b", "a"})) == sign(partial(one, {"a", "b"}))


class Pair(NamedTuple):
    heat: float


@dataclasses.dataclass(slots=True)
class Slotted:
    heat: float


class Shared:
    heat = 1.0


class Mode(enum.Enum):
    WARM = object()  # its text is of one process


def by_default(heat):
    def late(_, heat=heat):
        return heat

    return late


def by_keyword(heat):
    def late(_, *, heat=heat):
        return heat

    return late


def by_class(heat):
    Shared.heat = heat
    return Shared()


def in_itself(heat):
    found: list[Any] = [heat]
    found.append(found)
    return found


HOLDERS = {
    "default": by_default,
    "keyword default": by_keyword,
    "NamedTuple": Pair,
    "slots": Slotted,
    "SimpleNamespace": lambda heat: types.SimpleNamespace(heat=heat),
    "argparse": lambda heat: argparse.Namespace(heat=heat),
    "loss of torch": lambda heat: nn.CrossEntropyLoss(label_smoothing=heat),
    "module in a module": lambda heat: nn.Sequential(nn.CrossEntropyLoss(label_smoothing=heat)),
    "objects in a list": lambda heat: [Slotted(heat), (Pair(0.0), partial(max, heat))],
    "dict with what cannot be said": lambda heat: {"on": threading.Lock(), "heat": heat, "kind": torch.float32},
    "class": by_class,
    "cycle": in_itself,
    "deep": lambda heat: [[[Criterion([heat], None)]]],
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_numbers_are_in_a_sign_wherever_they_are_held(hold):
    sign = signs()
    assert sign(partial(own, hold(0.5))) == sign(partial(own, hold(0.5)))
    assert sign(partial(own, hold(0.5))) != sign(partial(own, hold(0.25)))


def test_what_is_of_one_process_and_tensors_are_in_a_sign_by_their_class_alone():
    def held(number):
        log = logging.getLogger(f"log {number}")
        return [torch.ones(number), io.StringIO(str(number)), threading.Lock(), log, Mode.WARM, [number] * 300 * number]

    assert signs()(partial(own, held(1))) == signs()(partial(own, held(2)))
    endless = [types.SimpleNamespace(number=number) for number in range(200)]
    endless = [types.SimpleNamespace(all=endless) for _ in range(200)]
    assert len(signs()(partial(own, endless))) < 50_000


def test_what_was_there_before_the_loop_is_the_states_matter():
    """A partial as a function is, what is in lists and dicts, objects with slots, keyword defaults."""
    log, nested, slotted, late = [], {"log": []}, Slotted(1.0), by_keyword([])
    made = partial(own, log, slotted, seen=nested)
    sign = signs(made, late)
    each = [lambda: made, lambda: late, lambda: partial(own, log), lambda: partial(own, nested["log"], slotted)]
    before = [sign(make()) for make in each]
    log.append(1)
    nested["log"].append(2)
    slotted.heat = 2.0
    late.__kwdefaults__["heat"].append(3)
    assert [sign(make()) for make in each] == before
    assert sign(partial(own, log)) != sign(partial(own, nested["log"]))
    made.keywords["seen"] = None  # the state has lost it
    assert sign(made) == before[0]
    assert sign(each[3]()) != before[3]
    assert sign(late.__kwdefaults__["heat"]) == "list (known 1 keyword defaults.heat)"


def test_an_object_of_which_lines_ask_for_a_method_by_a_word_is_in_hand():
    def lines(words, turns):
        return in_hand(), getattr(turns[0], words[0])

    turns, words = [Trainer()], ["loss"]
    assert lines(words, turns)[0]["lines.turns.0"] is turns[0]


def test_names_of_a_file_that_no_state_knows_are_in_a_sign():
    names = {"__name__": __name__, "heat": 1.0}
    exec("def late(_): return heat", names)  # noqa: S102 - of a file of its own
    late, sign = names["late"], signs()
    before = sign(late)
    names["heat"] = 2.0
    assert sign(late) != before
    sign = signs(late)
    before = sign(late)
    names["heat"] = 3.0
    assert sign(late) == before


def test_members_that_are_given_different_functions_are_told():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    def heard(*signs):
        watched = [Alike(optimizer) for _ in signs]
        for each, sign in zip(watched, signs, strict=True):
            each.given = sign
        said = [each.say(3, trains=True) for each in watched] + [Alike(optimizer).say(3, trains=False)]
        watched[0].hear([sum(words) for words in zip(*said, strict=True)], 3)

    heard("warm", "warm", "warm")
    with pytest.raises(RanksDiffer, match=r"step 3 .*function that s\.step is given(.|\n)*here it was warm"):
        heard("warm", "full", "warm")

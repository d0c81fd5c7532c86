"""Python's and numpy's dice in a loop: the same at all workers, whatever each of them has drawn."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.train.choices import LOOKS, Choices, choices_kept  # noqa: E402
from sublet.train.state import State, random_state, restore_random  # noqa: E402
from tests.rigs.little_network import adam, data, loss_of, network  # noqa: E402


def drawn():
    """The next of each: Python's, numpy's, torch's."""
    return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002 - the dice of a script


def seeded(seed):
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - as above
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def _dice_as_they_were():
    was = random_state()
    yield
    restore_random(was)


def state_of(model):
    return State(model, adam(model), [], None, 3)


def test_a_newcomer_takes_over_the_dice_that_choose_and_none_that_make_masks():
    one, other = network(), network()
    seeded(1)
    with train.session(one, adam(one), data(), global_batch=16, epochs=1) as s:
        tree = state_of(one).tree(s._progress)
        expected = drawn()
        ranks = []
        for rank in (1, 2):
            seeded(2)
            state_of(other).restore(tree, s._progress, same_dice=False, rank=rank)
            ranks.append(drawn())
    assert ranks[0][:2] == ranks[1][:2] == expected[:2]
    assert len({expected[2], ranks[0][2], ranks[1][2]}) == 3


def test_of_a_step_that_is_dropped_no_draw_of_python_counts_and_numpy_is_thrown_alike():
    seeded(1)
    expected = drawn()
    found = []
    for draws in (0, 1, 7):
        seeded(1)
        choices = Choices(seed=3)
        choices.begin(2, alike=True)
        for _ in range(draws):
            drawn()
        choices.drop(4, half=False)
        found.append(drawn()[:2])
    assert found == [(expected[0], found[0][1])] * 3
    assert found[0][1] != expected[1]


def after_a_step(world, draws, *, alike, steps=5, half=None):
    seeded(1)
    choices = Choices(seed=3)
    choices.begin(world, alike=alike)
    for _ in range(draws):
        drawn()
    if half is not None:
        choices.drop(4, half=half)
    choices.end(steps)
    return drawn()


def test_they_go_on_as_in_one_process_where_all_have_as_many_samples():
    seeded(1)
    drawn()
    expected = drawn()
    assert after_a_step(1, 1, alike=True) == expected
    assert after_a_step(1, 1, alike=False) == expected  # alone nothing is ever thrown
    assert after_a_step(2, 1, alike=True) == expected


def test_they_are_thrown_alike_after_a_step_of_which_some_had_more():
    one, other = (after_a_step(2, draws, alike=False) for draws in (0, 3))
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert after_a_step(2, 0, alike=False, steps=6)[:2] != one[:2]


def test_they_are_thrown_alike_where_a_step_was_applied_by_some_before_a_break_and_by_others_after_it():
    first, late = after_a_step(2, 1, alike=True, half=True), after_a_step(2, 1, alike=True, half=False)
    assert first[:2] == late[:2]


def test_what_a_dataset_draws_is_drawn_for_its_samples_and_not_from_the_loop():
    choices, found = Choices(seed=3), []
    choices.begin(2, alike=True)
    seeded(1)
    expected = drawn()
    for start in (4, 0, 8, 0):  # at the first it is seen that numpy's are asked for
        seeded(1)
        with choices.apart(5, start, draws=True):
            found.append(drawn()[:2])
        assert drawn()[:2] == expected[:2]
    assert found[1] == found[3]
    assert not {*found[1]} & {*found[2]}
    choices.begin(1, alike=True)
    seeded(1)
    with choices.apart(5, 0, draws=True):
        assert drawn() == expected  # alone: as in a plain loop


def test_a_dataset_that_draws_from_numpy_later_is_seen_within_so_many_loads():
    choices = Choices(seed=3)
    choices.begin(2, alike=True)
    for _ in range(LOOKS):
        with choices.apart(5, 0, draws=True):
            pass
    seeded(1)
    with choices.apart(5, 0, draws=True):
        drawn()
    found = np.random.random()  # noqa: NPY002 - as above
    seeded(1)
    assert found == drawn()[1]


@pytest.mark.parametrize("world", [1, 2])
def test_what_an_evaluation_draws_counts_alone_and_not_among_several_who_have_a_part_each(world):
    seeded(1)
    drawn()
    second = drawn()
    seeded(1)
    with choices_kept(world):
        first = drawn()
    assert (drawn()[:2] == second[:2]) is (world == 1)
    assert first != second


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([float(index), random.random()])


def test_samples_say_whether_they_may_draw_in_this_process():
    plain, loaded = Noisy(), torch.utils.data.DataLoader(Noisy(), batch_size=2)
    ahead = torch.utils.data.DataLoader(Noisy(), batch_size=2, num_workers=1)
    said = []
    for each in (plain, loaded, ahead, data()):
        model = torch.nn.Linear(2, 1)
        with train.session(
            model, adam(model), each, epochs=1, **({} if each in (loaded, ahead) else {"global_batch": 2})
        ) as s:
            said.append(s._steps._samples.draws_here)
    assert said == [True, True, False, False]


def test_alone_a_loop_draws_what_a_plain_one_does():
    seeded(1)
    expected = [drawn()[:2] for _ in range(4)]
    model, found = network(), []
    seeded(1)
    with train.session(model, adam(model), data(), global_batch=16, epochs=1) as s:
        for batch in s:
            found.append(drawn()[:2])
            s.step(loss_of(model, batch))
    assert found == expected

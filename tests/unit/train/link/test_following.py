"""Orders are followed alike over any group: here over one in memory, where all members take turns in one thread."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from sublet.errors import NoCheckpointLeft
from sublet.train.link.agent_line import AgentLine, LineLost
from sublet.train.link.following import Broken, Following, at_once
from sublet.wire.lines import LineBuffer, to_line
from sublet.wire.messages import EXIT_LEFT, Broke, Leading, Leave, Left, Meet, Regroup, SaveNow


@types.coroutine
def pause():
    yield


class News:
    """Waits by letting the others have a turn; `patience` turns without what it waits for are too many."""

    patience = 50

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    async def wait(self, predicate, wait_s):
        for _ in range(self.patience):
            if predicate():
                return True
            await pause()
        return False

    def notify(self):
        pass


class Said(list):
    def __init__(self):
        super().__init__()
        self._lines = LineBuffer()

    def sendall(self, data):
        self.extend(self._lines.feed(data))


class Table:
    """Where the members of one generation meet; it is over when one of them hangs up."""

    def __init__(self):
        self.rounds, self.over, self.formed = {}, False, set()


class Group:
    def __init__(self, tables, order=None):
        self.rank, self.world, self.generation = (order.rank, order.world, order.generation) if order else (0, 1, 0)
        self.table, self.turn = tables.setdefault(self.generation, Table()), 0

    async def lead(self):
        return "here", 1

    async def find(self, meet, check):
        check()

    async def form(self):
        await self.numbers(0)

    async def numbers(self, mine):
        if self.world == 1:
            return [mine]
        heard = self.table.rounds.setdefault(self.turn, {})
        self.turn += 1
        heard[self.rank] = mine
        while len(heard) < self.world:
            if self.table.over:
                raise Broken("somebody is gone")
            await pause()
        return [heard[rank] for rank in range(self.world)]

    async def part(self):
        await self.numbers(0)

    def hang_up(self):
        self.table.over = True

    def close(self):
        pass


class Keeper:
    def __init__(self, steps=0, saved=None):
        self.steps, self.saved, self.opened, self.closed, self.shared = steps, saved, [], False, []

    @property
    def done(self):
        return float(self.steps)

    @property
    def ahead(self):
        return self.steps

    def open(self, generation):
        self.opened.append(generation)

    async def load(self):
        if self.saved == "damaged":
            raise NoCheckpointLeft("there", 1, "a bit is wrong")
        if self.saved is not None:
            self.steps = self.saved
        return self.saved is not None

    async def share(self, group, holders):
        self.shared.append(holders)
        self.steps = (await group.numbers(self.steps))[holders[0]]

    async def save(self):
        self.saved = self.steps

    def close(self):
        self.closed = True


class Member:
    def __init__(self, name, tables, **facts):
        self.said, self.keeper = Said(), Keeper(**facts)
        self.line = AgentLine(self.said, name, news=News())
        self.following = Following(
            self.line, self.keeper, Group(tables), lambda order: Group(tables, order), wait_s=300.0
        )
        self.task = self.outcome = None

    def hear(self, *messages):
        for message in messages:
            assert self.line.hear(to_line(message))
        self.line.turn()

    def step(self):
        if self.outcome is None:
            self.task = self.task or self.following.follow()
            try:
                self.task.send(None)
            except StopIteration as end:
                self.outcome = end.value
            except (SystemExit, LineLost) as end:
                self.outcome = end

    def go_on(self, task):
        self.task, self.outcome = task, None


def regroup(rank, world, generation, **more):
    return Regroup(worker_id="w", rank=rank, world=world, generation=generation, **more)


def meet(generation):
    return Meet(worker_id="w", generation=generation, host="here", port=1)


def run(*members, turns=20):
    for _ in range(turns):
        for member in members:
            member.step()


@pytest.fixture
def pair():
    tables = {}
    return Member("a", tables), Member("b", tables)


def join(pair, generation=1):
    for rank, member in enumerate(pair):
        member.hear(regroup(rank, 2, generation), meet(generation))
    run(*pair)


def test_nothing_of_it_needs_torch_nor_the_library_of_object_stores():
    code = "import sys, sublet.train.link.following; sys.exit(bool({'torch', 'obstore'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_all_take_the_state_of_the_one_with_the_most_steps(pair):
    join(pair)
    a, b = pair
    assert (a.outcome.source, b.outcome.source) == ("fresh", "fresh")
    assert isinstance(a.said[0], Leading)
    assert (a.keeper.opened, b.keeper.opened) == ([1], [])
    b.keeper.steps = 7
    a.go_on(a.following.change())
    b.go_on(b.following.change())
    join(pair, 2)
    assert (a.keeper.steps, b.keeper.steps) == (7, 7)
    assert a.outcome.source == b.outcome.source == "peer"
    assert a.keeper.shared[-1] == [1]


def test_newcomers_take_the_checkpoint_of_rank_0(pair):
    pair[0].keeper.saved = 30
    join(pair)
    assert [member.keeper.steps for member in pair] == [30, 30]
    assert {member.outcome.source for member in pair} == {"checkpoint"}


def test_the_newest_order_counts_and_an_older_one_is_late_news():
    alone = Member("a", {})
    alone.hear(regroup(0, 1, 5), regroup(0, 2, 4))
    run(alone)
    assert alone.following.group.generation == 5
    alone.hear(regroup(0, 2, 5))
    assert not alone.line.pending


def test_a_newer_order_ends_the_forming_of_a_group_that_nobody_comes_to(pair):
    a, b = pair
    a.hear(regroup(0, 2, 1))
    run(a)
    assert a.outcome is None
    a.hear(regroup(0, 1, 2))
    run(a)
    assert a.following.group.generation == 2
    assert not any(isinstance(word, Broke) for word in a.said)  # there was an order already
    assert a.outcome.source == "fresh"
    assert not a.line._cutting
    del b


def test_a_break_is_told_once_and_the_next_order_is_awaited(pair):
    join(pair)
    a, b = pair
    b.following.group.hang_up()
    a.go_on(a.following.recover("b is gone"))
    run(a, turns=5)
    assert [word.why for word in a.said if isinstance(word, Broke)] == ["b is gone"]
    a.hear(regroup(0, 1, 2))
    run(a)
    assert a.outcome.source == "peer"


def test_a_break_while_it_forms_is_told_and_survived(pair):
    a, b = pair
    a.hear(regroup(0, 2, 1))
    run(a, turns=3)
    b.hear(regroup(1, 2, 1))
    a.following.group.hang_up()  # its peer's end of the connection
    run(a, turns=3)
    assert [word.generation for word in a.said if isinstance(word, Broke)] == [1]
    a.hear(regroup(0, 1, 2))
    run(a)
    assert a.outcome.source == "fresh"


def test_an_order_that_breaks_a_group_does_not_hang_up_on_the_next_one(pair):
    """The loop may be in the next group already when whoever listens comes to hang up on the one before."""
    join(pair)
    a, b = pair
    for member in pair:
        member.go_on(member.following.recover("c is gone"))
    run(*pair, turns=2)
    for rank, member in enumerate(pair):
        assert member.line.hear(to_line(regroup(rank, 2, 2, broken=True)))
        member.step()
        member.line.turn()
        member.hear(meet(2))
    run(*pair)
    assert (a.outcome.source, b.outcome.source) == ("peer", "peer")
    assert sum(isinstance(word, Broke) for word in a.said) == 1


@pytest.mark.parametrize(
    ("rank", "order", "saves"),
    [(0, {"save": True}, True), (1, {"save": True}, False), (1, {"save": True, "broken": True}, True), (0, {}, False)],
)
def test_who_leaves_saves_if_it_is_told_to_and_is_the_one_that_must(pair, rank, order, saves):
    join(pair)
    member = pair[rank]
    member.keeper.steps = 9
    member.go_on(member.following.recover("the rest is gone") if order.get("broken") else member.following.follow())
    member.hear(Leave(worker_id="w", generation=2, **order))
    run(member)
    assert (member.outcome.code, member.keeper.saved) == (EXIT_LEFT, 9 if saves else None)
    assert member.keeper.closed
    assert [(word.step, word.generation) for word in member.said if isinstance(word, Left)] == [(9, 2)]


def test_who_never_had_a_state_saves_none():
    alone = Member("a", {})
    alone.hear(Leave(worker_id="w", generation=2, save=True))
    run(alone)
    assert (alone.outcome.code, alone.keeper.saved) == (EXIT_LEFT, None)


def test_without_a_checkpoint_that_can_be_trusted_it_waits_for_orders():
    alone = Member("a", {}, saved="damaged")
    alone.hear(regroup(0, 1, 1))
    run(alone)
    assert alone.outcome is None
    alone.hear(Leave(worker_id="w", generation=1))
    run(alone)
    assert alone.outcome.code == EXIT_LEFT


def test_it_ends_when_nobody_gives_orders_or_the_line_is_closed():
    silent, closed = Member("a", {}), Member("b", {})
    run(silent, turns=News.patience + 2)
    assert "no order came" in str(silent.outcome)
    assert not closed.line.hear(b"")
    closed.line.end()
    run(closed)
    assert "closed the line" in str(closed.outcome)


def test_a_wish_for_a_checkpoint_is_kept_for_the_loop():
    alone = Member("a", {})
    alone.hear(SaveNow(worker_id="w"))
    assert alone.line.save_now


def test_what_suspends_is_refused_where_nothing_else_can_go_on():
    with pytest.raises(RuntimeError, match="suspended"):
        at_once(pause())

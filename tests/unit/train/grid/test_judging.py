"""Evaluations in which a worker is lost, and newcomers that have yet to make their first step."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue, RanksDiffer  # noqa: E402
from sublet.train.grid.in_stages import InStages  # noqa: E402
from sublet.train.grid.stages import Seat, parts_of  # noqa: E402
from sublet.train.link.following import Broken  # noqa: E402
from sublet.wire.messages import EXIT_LOST  # noqa: E402
from sublet_lab.threads_mesh import Threads, ThreadsMesh  # noqa: E402
from tests.rigs.numbers_in_stages import BATCH, MICRO, a_net, data, squared  # noqa: E402


def a_session(model, **more):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = {"global_batch": BATCH, "micro_batch": MICRO, "loss": squared, **more}
    return train.session(model, optimizer, data(16), **facts)


def judged(monkeypatch, breaks, settle, *, where="in it"):
    """What two evaluations after a step come to, of which the first breaks so often: in the loop, or behind it."""
    model, found, left = a_net(blocks=2), [], [breaks]
    monkeypatch.setattr(InStages, "_following", lambda *_: None)
    monkeypatch.setattr(InStages, "_settle_in", lambda way, _: settle(way, model))

    def evaluate(s):
        judge = s._strategy.member.judge

        def broken(*each, **more):
            assert not model.training
            left[0] -= 1
            if left[0] >= 0:
                raise Broken("gone")
            return judge(*each, **more)

        s._strategy.member.judge = broken
        found.extend(s.evaluate(data(count)) for count in (16, 4))
        s._strategy.member.judge = judge

    with a_session(model) as s:
        for batch in s.batches(epochs=1):
            s.step(batch)
            if where == "in it":
                evaluate(s)
            if where != "behind the last step":
                break
        if where != "in it":
            evaluate(s)
    return found


def joined(s, model):
    """Somebody has; the mode of the script is as it was."""
    assert model.training


@pytest.mark.parametrize("where", ["in it", "behind a break", "behind the last step"])
def test_an_evaluation_in_which_somebody_is_lost_is_made_again(monkeypatch, where):
    """However often."""
    whole = judged(monkeypatch, 0, joined, where=where)
    assert judged(monkeypatch, 2, joined, where=where) == whole
    assert len({*whole}) == 2


def test_where_all_go_back_in_an_evaluation_the_loop_runs_on_from_there(monkeypatch):
    """It is what the last one came to, and so is the next, until a step is made."""
    seen = []

    def back(way, _):
        way.member.new, way.member.applied, progress = True, 0, way.progress
        progress.steps = progress.epoch = progress.offset = progress.before = 0

    monkeypatch.setattr(InStages, "_following", lambda *_: None)
    monkeypatch.setattr(InStages, "_settle_in", back)
    breaks = iter([False, False, True])

    def judged(judge, *facts):
        if next(breaks, False):
            raise Broken("gone")
        return judge(*facts)

    with a_session(a_net(blocks=2), epochs=2) as s:
        for batch in s:
            s.step(batch)
            if s.steps == 1 and not seen:
                s._strategy.member.judge = partial(judged, s._strategy.member.judge)
            seen.append((s.steps, s.evaluate(data(16)), s.steps, s.evaluate(data(16))))
    assert [(before, after) for before, _, after, _ in seen] == [(1, 1), (2, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert seen[1][1] == seen[1][3] == seen[0][1], "what the last one came to"
    assert len({value for _, value, _, _ in seen}) == 5


def broken_step(monkeypatch, settle):
    """How often a step is made by this worker in the second call of `s.step`, whose grid breaks, and `s.steps` then."""
    monkeypatch.setattr(InStages, "_following", lambda *_: None)
    monkeypatch.setattr(InStages, "_settle_in", lambda way, _: settle(way))
    made, breaks = [], iter([False, True])

    def broken(s, step, *facts, **more):
        made.append(s.steps)
        if next(breaks, False):
            raise Broken("gone")
        return step(*facts, **more)

    with a_session(a_net(blocks=2), epochs=1) as s:
        for batch in s:
            if not made:
                s._strategy.member.step = partial(broken, s, s._strategy.member.step)
            s.step(batch)
            if len(made) > 1:
                return made[1:], s.steps
    return None


def test_a_step_that_breaks_is_made_again(monkeypatch):
    assert broken_step(monkeypatch, lambda _: None) == ([1, 1], 2)


def test_one_that_the_others_have_made_is_not_made_again(monkeypatch):
    assert broken_step(monkeypatch, lambda way: way.progress.advance()) == ([1], 2)


def test_where_all_go_back_in_a_step_the_one_there_is_made(monkeypatch):
    def back(way):
        way.member.new, way.member.applied, progress = True, 0, way.progress
        progress.steps = progress.epoch = progress.offset = progress.before = 0

    assert broken_step(monkeypatch, back) == ([1, 0], 1)


@pytest.mark.parametrize("where", ["behind a break", "behind the last step"])
def test_a_script_that_has_left_its_loop_when_all_go_back_ends_for_another_process_to_go_on(monkeypatch, capsys, where):
    def back(way, _):
        way.member.new = True
        way.progress.steps, way.progress.epoch = 0, 0

    with pytest.raises(SystemExit) as ended:
        judged(monkeypatch, 1, back, where=where)
    assert ended.value.code == EXIT_LOST
    assert "all went back to step 0" in capsys.readouterr().err


def test_an_evaluation_before_the_first_batch_is_refused():
    with pytest.raises(InvalidValue, match="in the loop, or after it"), a_session(a_net(blocks=2)) as s:
        s.evaluate(data(16))


class Joins:
    """Two copies in threads, of which the second has joined: its script has yet to come to its first batch."""

    def __init__(self, monkeypatch, there, comes):
        threads = Threads()
        meshes = ThreadsMesh.all_of(threads, 2)
        self.sessions, self.found = {}, {}
        meet = InStages.meet
        monkeypatch.setattr(InStages, "meet", lambda way: self._meet(way, meet, meshes))
        monkeypatch.setattr(InStages, "finish", lambda way: way.together("end"))
        self.ended = threads.run(
            {
                name: lambda name=name, script=script: self._live(name, script)
                for name, script in (("there", there), ("comes", comes))
            }
        )

    def _meet(self, way, meet, meshes):
        name = next(name for name, each in self.sessions.items() if each._strategy is way)
        way.mesh = meshes[0 if name == "there" else 1]
        way.seat = Seat(copy=way.mesh.rank, part=0, copies=2, parts=parts_of(2, 1))
        meet(way)
        if name == "there":
            way._optimizer.param_groups[0]["lr"] = 0.5  # what its lines have set since the two have met
        way.member.new, way.member.speaker = name == "comes", 0

    def _live(self, name, script):
        try:
            with a_session(a_net(blocks=2), epochs=1) as s:
                self.sessions[name] = s
                self.found[name] = script(s)
        except BaseException:
            s._strategy.mesh.hang_up()
            raise


def looped(s, found, evaluates=()):
    for batch in s:
        s.step(batch)
        found.append((s.steps, s._strategy._optimizer.param_groups[0]["lr"]))
    found.extend(s.evaluate(each) for each in evaluates)
    return found


def test_a_newcomer_serves_evaluations_until_its_first_step_and_has_the_rates_of_that(monkeypatch):
    def there(s):
        batches = iter(s)
        next(batches)
        return [s.evaluate(data(10)), s.evaluate(data(6))]

    def comes(s):
        return looped(s, [])

    model = a_net(blocks=2).eval()
    with torch.no_grad():
        truth = [float(squared(model(each.tensors[0]), each.tensors)) for each in (data(10), data(6))]
    lives = Joins(monkeypatch, there, comes)
    assert lives.found["there"] == pytest.approx(truth, rel=1e-6)
    assert lives.found["comes"] == [], "the others have left their loop before its first step, and it with them"
    assert lives.sessions["comes"]._strategy.judged == lives.found["there"][1]
    assert lives.sessions["comes"]._strategy._optimizer.param_groups[0]["lr"] == 0.5
    assert set(lives.ended.values()) <= {None}


def test_a_newcomer_makes_its_first_step_with_the_others(monkeypatch):
    lives = Joins(monkeypatch, lambda s: looped(s, []), lambda s: looped(s, []))
    assert lives.found["there"] == lives.found["comes"] == [(1, 0.5), (2, 0.5)]


def test_workers_that_come_to_different_things_are_told_so(monkeypatch):
    """Of those who were there one evaluates, and another makes a step."""

    def comes(s):
        monkeypatch.setattr(s._strategy, "boundary", lambda: setattr(s._strategy.member, "new", False))
        return looped(s, [])

    lives = Joins(monkeypatch, lambda s: next(iter(s)) and s.evaluate(data(16)), comes)
    assert isinstance(lives.ended["comes"], RanksDiffer)

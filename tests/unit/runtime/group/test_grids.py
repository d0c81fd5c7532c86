"""A group whose job is cut: who is told which place, who gives, who waits, and when it trains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.shape import Grid
from sublet.runtime.group.build import build_group
from sublet.runtime.group.places import Form, Places
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.group.workers import Census
from sublet.runtime.jobs.bounds import Shards
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from sublet.wire.messages import EXIT_LEFT, EXIT_MEMORY
from tests.rigs.groups import sent


def a_group(**facts):
    spec = JobSpec(name="job", argv=("x",), cwd="/", max_workers=8, stages=0, **facts)
    return build_group("job-1", spec, log_of=str, env=dict)


def on(*nodes):
    return tuple((node, 1) for node in nodes)


def ready(group, at_s, version=2):
    for _, start in sent(group, wire.StartWorker):
        group.hear(wire.Ready(worker_id=start.worker_id, version=version, blocks=(1,) * 12), at_s)


def told(group):
    """Places by node, of the last orders; None = it only gives."""
    orders = sent(group, wire.Regroup)
    assert sorted(order.meeting for _, order in orders) == list(range(len(orders)))
    assert all(order.meets == len(orders) for _, order in orders)
    return {node: (order.copy, order.part) if order.stays else None for node, order in orders}


def all_join(group, at_s, step=10):
    awaited = [worker for worker in group.workers.values() if worker.phase == "member"]
    for worker in awaited:
        assert Outcome.MOVED not in {news.outcome for news in group.news}
        facts = {"generation": group.round.number, "step": step, "done": float(step), "work": 100.0}
        group.hear(wire.Joined(worker_id=worker.id, **facts), at_s)


def training(grid, *nodes, spares=()):
    group = a_group()
    group.move(1, on(*nodes, *spares), 0, 0.0, Form(grid))
    ready(group, 1.0)
    places = told(group)
    all_join(group, 2.0)
    assert [news.outcome for news in group.news] == [Outcome.MOVED]
    group.news.clear()
    assert group.training
    return group, places


def on_node(group, node):
    return next(worker for worker in group.workers.values() if worker.node_id == node)


def kill(group, node, at_s):
    group.hear(wire.WorkerDown(worker_id=on_node(group, node).id, code=-9), at_s)


def test_a_grid_trains_when_all_of_it_have_joined_and_its_spare_is_told_nothing():
    group, places = training(Grid(2, 2), "a", "b", "c", "d", "e")
    assert sorted(places.values()) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert group.size == 4
    (spare,) = {"a", "b", "c", "d", "e"} - places.keys()
    assert on_node(group, spare).phase == "ready"


def test_ranks_follow_from_places_and_everybody_knows_the_grid():
    group = a_group()
    group.move(1, on("a", "b", "c", "d", "e", "f"), 0, 0.0, Form(Grid(2, 3)))
    ready(group, 1.0)
    for _, order in sent(group, wire.Regroup):
        assert order.rank == order.meeting == order.copy * 3 + order.part
        assert (order.copies, order.parts, order.cut, order.world) == (2, 3, "stages", 6)


def test_a_spare_takes_the_place_of_one_that_died_at_once_and_the_others_stay():
    group, places = training(Grid(2, 2), "a", "b", "c", "d", "e")
    (spare,) = {"a", "b", "c", "d", "e"} - places.keys()
    lost = next(iter(places))
    kill(group, lost, 3.0)
    orders = {node: order for node, order in group.outbox if isinstance(order, wire.Regroup)}
    assert all(order.broken for order in orders.values())
    assert told(group) == {node: place for node, place in places.items() if node != lost} | {spare: places[lost]}
    all_join(group, 4.0)
    assert group.training
    assert [node for node, _ in sent(group, wire.StartWorker)] == [lost], "who comes there is the next spare"


def test_without_a_spare_it_goes_on_with_fewer_copies_until_the_next_one_comes():
    group, places = training(Grid(2, 2), "a", "b", "c", "d")
    lost = next(node for node, place in places.items() if place == (1, 0))
    kill(group, lost, 3.0)
    seated = told(group)
    assert {place for place in seated.values() if place[0] >= 0} == {(0, 0), (0, 1)}
    assert len(seated) == 3, "the third keeps what it has"
    all_join(group, 4.0)
    assert group.training
    ready(group, 5.0)
    again = told(group)
    assert sorted(again.values()) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {node: again[node] for node, place in seated.items() if place[0] >= 0} == {
        node: place for node, place in seated.items() if place[0] >= 0
    }, "who trains stays; the third has both parts, and takes either"


def test_who_leaves_gives_first_and_is_told_to_go_when_it_has():
    group, places = training(Grid(2, 2), "a", "b", "c", "d")
    leaving = next(node for node, place in places.items() if place == (0, 1))
    staying = [node for node in places if node != leaving]
    group.move(2, on(*staying, "e"), 0, 3.0, Form(Grid(2, 2)))
    assert sent(group, wire.Regroup) == [], "the old one trains on"
    ready(group, 4.0)
    assert told(group) == {node: places[node] for node in staying} | {"e": (0, 1), leaving: None}
    assert sent(group, wire.Leave) == []
    giver = on_node(group, leaving)
    first = next(worker for worker in group.workers.values() if worker.rank == 0)
    group.hear(wire.Leading(worker_id=first.id, generation=group.round.number, host="h", port=1), 4.0)
    assert {node for node, _ in sent(group, wire.Meet)} == {*staying, "e", leaving} - {first.node_id}
    group.hear(wire.Left(worker_id=giver.id, generation=group.round.number, step=10, done=10.0, gave_bytes=5), 5.0)
    assert [node for node, _ in sent(group, wire.Leave)] == [leaving]
    all_join(group, 5.0)
    assert group.training


def test_another_depth_is_ordered_and_all_who_were_there_meet():
    group, places = training(Grid(2, 2), "a", "b", "c", "d")
    group.move(2, on(*places), 0, 3.0, Form(Grid(1, 4)))
    seated = told(group)
    assert sorted(seated.values()) == [(0, part) for part in range(4)]
    assert all(place[1] // 2 == places[node][1] for node, place in seated.items()), "each keeps half of what it had"


def test_a_giver_that_stays_waits_as_one_that_has_just_come():
    group = a_group()
    group.move(1, (("a", 2),), 0, 0.0, Form(Grid(2, 1)))
    ready(group, 1.0)
    sent(group, wire.Regroup)
    all_join(group, 2.0)
    group.move(2, (("a", 2),), 0, 3.0, Form(Grid(1, 1)))
    orders = [order for _, order in sent(group, wire.Regroup)]
    assert [(order.stays, order.rank, order.meets) for order in orders] == [(True, 0, 2), (False, -1, 2)]
    giver = group.workers[orders[1].worker_id]
    group.hear(wire.Left(worker_id=giver.id, generation=group.round.number, step=10, done=10.0), 4.0)
    assert (giver.phase, giver.place, giver.left) == ("ready", None, False)
    assert sent(group, wire.Leave) == [], "its GPU is a spare"


def test_who_had_given_its_place_up_does_not_wait_for_a_grid_whose_last_step_is_made():
    """It is called to a place again when the others have made their last step."""
    group = a_group()
    group.move(1, (("a", 2),), 0, 0.0, Form(Grid(2, 1)))
    ready(group, 1.0)
    sent(group, wire.Regroup)
    all_join(group, 2.0)
    group.news.clear()
    group.move(2, (("a", 2),), 0, 3.0, Form(Grid(1, 1)))
    stays, gives = (order.worker_id for _, order in sent(group, wire.Regroup))
    group.hear(wire.Left(worker_id=gives, generation=group.round.number, step=10, done=10.0), 4.0)
    all_join(group, 5.0)
    group.move(3, (("a", 2),), 0, 6.0, Form(Grid(2, 1)))
    assert {order.worker_id for _, order in sent(group, wire.Regroup)} == {stays, gives}
    group.hear(wire.Finished(worker_id=stays, step=100, done=100.0), 7.0)
    assert [end.worker_id for _, end in sent(group, wire.EndWorker)] == [gives]


def test_if_a_giver_dies_while_all_meet_they_meet_again_without_it():
    group, places = training(Grid(2, 2), "a", "b", "c", "d")
    leaving, *staying = places
    group.move(2, on(*staying, "e"), 0, 3.0, Form(Grid(2, 2)))
    ready(group, 4.0)
    told(group)
    before = group.round
    kill(group, leaving, 5.0)
    assert group.round != before
    assert told(group).keys() == {*staying, "e"}


def test_who_has_not_given_yet_is_called_again_when_another_dies_while_all_meet():
    group, places = training(Grid(1, 2), "a", "b")
    group.move(2, on("b", "e", "f"), 0, 3.0, Form(Grid(1, 2)))
    ready(group, 4.0)
    assert told(group)["a"] is None
    newcomer = next(node for node in ("e", "f") if on_node(group, node).place == places["a"])
    kill(group, newcomer, 5.0)
    assert told(group)["a"] is None, "nobody else has what it has"


@pytest.mark.parametrize("with_node", [True, False])
def test_the_loss_of_a_spare_changes_nothing(with_node):
    group, places = training(Grid(2, 2), "a", "b", "c", "d", "e")
    (spare,) = {"a", "b", "c", "d", "e"} - places.keys()
    if with_node:
        group.node_lost(spare, 3.0)
    else:
        kill(group, spare, 3.0)
    assert sent(group, wire.Regroup) == []
    assert group.training
    assert [node for node, _ in sent(group, wire.StartWorker)] == ([] if with_node else [spare])


def test_an_order_for_other_spares_alone_is_no_reason_to_meet():
    group, places = training(Grid(2, 2), "a", "b", "c", "d", "e")
    group.move(2, on(*places, "f", "g"), 0, 3.0, Form(Grid(2, 2)))
    assert [(news.outcome, news.generation) for news in group.news] == [(Outcome.MOVED, 2)]
    assert sent(group, wire.Regroup) == []
    assert [node for node, _ in sent(group, wire.StartWorker)] == ["f", "g"]
    assert {node for node, _ in sent(group, wire.EndWorker)} == {"a", "b", "c", "d", "e"} - places.keys()


def test_a_noticed_node_hands_over_to_the_spare_before_it_goes():
    group, places = training(Grid(2, 2), "a", "b", "c", "d", "e")
    (spare,) = {"a", "b", "c", "d", "e"} - places.keys()
    noticed = next(iter(places))
    group.evacuate(noticed, 3.0)
    orders = [order for _, order in group.outbox if isinstance(order, wire.Regroup)]
    assert not any(order.broken for order in orders)
    assert told(group) == places | {noticed: None, spare: places[noticed]}
    all_join(group, 4.0)
    group.node_lost(noticed, 5.0)
    assert group.training


def test_a_noticed_node_without_which_no_copy_is_left_has_all_save_and_leave():
    group, places = training(Grid(1, 2), "a", "b")
    group.evacuate("a", 3.0)
    assert {(node, leave.save) for node, leave in sent(group, wire.Leave)} == {("a", True), ("b", True)}
    assert places.keys() == {"a", "b"}


def leaves(group):
    """Those of now: who meets whom, by node."""
    orders = sent(group, wire.Leave)
    assert sorted(order.meeting for _, order in orders) == list(range(len(orders)))
    assert all(order.save and order.meets == len(orders) for _, order in orders)
    return dict(orders)


def test_all_who_are_paused_meet_once_more_to_save_together():
    group, _ = training(Grid(1, 3), "a", "b", "c", spares=("d",))
    group.stop(2, resumable=True, wall_s=3.0)
    told_to = leaves(group)
    assert told_to.keys() == {"a", "b", "c"}
    first = next(node for node, order in told_to.items() if order.meeting == 0)
    leads = {"generation": told_to[first].generation, "host": "h", "port": 1}
    group.hear(wire.Leading(worker_id=on_node(group, first).id, **leads), 3.5)
    assert {node for node, _ in sent(group, wire.Meet)} == {"a", "b", "c"} - {first}
    for node in "abc":
        name = on_node(group, node).id
        group.hear(wire.Left(worker_id=name, generation=told_to[node].generation, step=12, done=12.0), 4.0)
        group.hear(wire.WorkerDown(worker_id=name, code=EXIT_LEFT), 4.5)
    kill(group, "d", 5.0)
    assert [news.outcome for news in group.news] == [Outcome.STOPPED]
    assert group.step == 12


def test_those_who_save_together_meet_again_without_one_that_dies():
    group, _ = training(Grid(1, 3), "a", "b", "c")
    group.stop(2, resumable=True, wall_s=3.0)
    before = leaves(group)["a"]
    kill(group, "b", 3.5)
    again = leaves(group)
    assert again.keys() == {"a", "c"}
    assert again["a"].generation > before.generation
    assert again["a"].broken
    broke = {"generation": again["a"].generation, "step": 10, "why": "the line failed"}
    group.hear(wire.Broke(worker_id=on_node(group, "a").id, **broke), 4.0)
    group.hear(wire.Broke(worker_id=on_node(group, "c").id, **broke), 4.0)
    third = leaves(group)
    assert third.keys() == {"a", "c"}, "once for each mesh that failed"
    group.node_lost("c", 4.2)
    assert leaves(group).keys() == {"a"}
    group.hear(wire.Left(worker_id=on_node(group, "a").id, generation=third["a"].generation, step=12, done=12.0), 4.5)
    group.hear(wire.WorkerDown(worker_id=on_node(group, "a").id, code=EXIT_LEFT), 5.0)
    assert [news.outcome for news in group.news] == [Outcome.STOPPED]


def test_whoever_comes_waits_for_those_who_save():
    """A notice for the only copy: all save and go, and the next grid is of their checkpoint, not of the one before."""
    group, _ = training(Grid(1, 2), "a", "b")
    group.evacuate("a", 3.0)
    told_to = leaves(group)
    group.move(2, on("c", "d"), 0, 4.0, Form(Grid(1, 2)))
    ready(group, 5.0)
    assert sent(group, wire.Regroup) == []
    for node in "ab":
        name = on_node(group, node).id
        group.hear(wire.Left(worker_id=name, generation=told_to[node].generation, step=12, done=12.0), 6.0)
        group.hear(wire.WorkerDown(worker_id=name, code=EXIT_LEFT), 6.5)
    assert told(group).keys() == {"c", "d"}


def test_every_part_of_the_first_copy_saves_and_part_0_says_that_it_is_committed():
    group, places = training(Grid(2, 2), "a", "b", "c", "d")
    group.save_now()
    assert {places[node] for node, _ in sent(group, wire.SaveNow)} == {(0, 0), (0, 1)}
    facts = {"step": 10, "done": 10.0, "seconds": 0.1, "blocked_s": 0.0, "size_bytes": 1}
    saved = {place[1]: on_node(group, node).id for node, place in places.items() if place[0] == 0}
    group.hear(wire.Saved(worker_id=saved[1], part=1, **facts), 3.0)
    assert group._owed == 10
    group.hear(wire.Saved(worker_id=saved[0], part=0, **facts), 3.0)
    assert group._owed is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "speaks version 1 of the wire, and grids came with 2; next: install this sublet"),
        ({"version": 2}, "its model has 0 blocks for 2 stages; next: train.Stages"),
        ({"version": 2, "blocks": (7,)}, "its model has 1 blocks for 2 stages"),
    ],
)
def test_a_session_that_cannot_be_cut_is_told_so(said, why):
    group = a_group()
    group.move(1, on("a", "b"), 0, 0.0, Form(Grid(1, 2)))
    ((_, start), _) = sent(group, wire.StartWorker)
    group.hear(wire.Ready(worker_id=start.worker_id, **said), 1.0)
    (news,) = group.news
    assert news.outcome is Outcome.FAILED
    assert why in news.why


DIFFER = "have different versions of sublet, whose workers do not understand each other in a grid; next: install"


def test_sessions_of_two_versions_do_not_meet_in_a_grid_and_are_told_so():
    group = a_group()
    group.move(1, on("a", "b"), 0, 0.0, Form(Grid(1, 2)))
    for (_, start), version in zip(sent(group, wire.StartWorker), (2, 3), strict=True):
        group.hear(wire.Ready(worker_id=start.worker_id, version=version, blocks=(1,) * 12), 1.0)
    assert not sent(group, wire.Regroup)
    (news,) = group.news
    assert news.outcome is Outcome.FAILED
    assert DIFFER in news.why


def test_where_a_newcomer_has_another_version_all_are_started_anew_and_train_on_with_that():
    """As where it was installed anew, for all starts since, while they trained."""
    group, places = training(Grid(1, 2), "a", "b")
    kill(group, next(iter(places)), 3.0)
    sent(group, wire.Regroup)
    ready(group, 4.0, version=3)
    assert not sent(group, wire.Regroup)
    assert not group.training
    assert len(sent(group, wire.EndWorker)) == 2
    for worker in [*group.workers.values()]:
        group.hear(wire.WorkerDown(worker_id=worker.id, code=-15), 5.0)
    orders, at_s = [], 5.0
    while not orders and at_s < 120.0:
        at_s += 1.0
        group.tick(at_s)
        ready(group, at_s, version=3)
        orders = sent(group, wire.Regroup)
    assert len(orders) == 2
    *_, why = [news.why for news in group.news if news.outcome is Outcome.RESTARTED]
    assert DIFFER in why


def test_of_one_that_was_ready_before_this_controller_nobody_knows_the_version():
    group, _ = training(Grid(1, 2), "a", "b")
    for worker in group.workers.values():
        worker.version = None
    kill(group, "a", 3.0)
    ready(group, 4.0, version=3)
    assert len(sent(group, wire.Regroup)) == 2


def ready_on(group, device_bytes, at_s=1.0):
    for _, start in sent(group, wire.StartWorker):
        facts = {"version": 2, "blocks": (10,) * 12, "device_bytes": device_bytes}
        group.hear(wire.Ready(worker_id=start.worker_id, **facts), at_s)


def test_a_grid_whose_parts_do_not_fit_is_not_tried_and_the_shallowest_that_does_is_there_instead():
    group = a_group()
    group.move(1, on("a", "b", "c", "d"), 0, 0.0, Form(Grid(4, 1)))
    ready_on(group, 100)  # uncut it takes 120, in three parts with one that is kept 80
    places = told(group)
    assert sorted(places.values()) == [(-1, -1), (0, 0), (0, 1), (0, 2)]
    all_join(group, 2.0)
    group.move(2, on("a", "b", "c", "d"), 0, 3.0, Form(Grid(1, 3)))
    assert told(group) == places, "the plan has heard of it, and nobody moves"


def test_too_few_for_another_depth_are_no_more_copies_of_the_old_one_than_were_ordered():
    """What a copy more would cost, only a plan has weighed."""
    places = Places("stages")
    places.take(Form(Grid(1, 8)), 8)
    places.formed = Grid(3, 2)
    assert places.possible(6, broken=True) == Grid(1, 2)
    assert places.possible(6, broken=False) is None
    assert places.possible(8, broken=True) == Grid(1, 8)


def test_too_few_for_a_grid_that_fits_wait():
    group = a_group()
    group.move(1, on("a", "b"), 0, 0.0, Form(Grid(2, 1)))
    ready_on(group, 100)
    assert sent(group, wire.Regroup) == []
    assert not group.news


def test_steps_that_were_made_count_more_than_what_they_are_thought_to_take():
    group, _ = training(Grid(2, 1), "a", "b")
    facts = {"step": 11, "done": 11.0, "epoch": 0, "loss": 1.0, "step_s": 0.1, "beside_bytes": 500}
    group.places.memory = replace(group.places.memory, device_bytes=100)
    old, now = (wire.Stepped(worker_id="x", generation=each, **facts) for each in (1, group.round.number))
    group.places.hear_step(old)
    assert group.places.memory.worked == 0, "of a grid that is no more"
    group.places.hear_step(now)
    assert group.places.memory.least(group.places.blocks, 8) == 1


def test_memory_is_as_the_pool_states_it_where_a_session_cannot_look():
    group = a_group()
    group.move(1, on("a", "b"), 0, 0.0, Form(Grid(2, 1), device_bytes=100))
    ready_on(group, 0)
    assert sent(group, wire.Regroup) == []


def test_a_model_no_part_of_which_fits_is_given_up_in_words():
    group = a_group()
    group.move(1, on("a", "b"), 0, 0.0, Form(Grid(2, 1)))
    ready_on(group, 12)
    (news,) = group.news
    assert news.outcome is Outcome.FAILED
    assert "no part fits: in 8 each takes" in news.why
    assert "next: GPUs with more memory" in news.why


def short(group, node, at_s, *, ends=True):
    worker = on_node(group, node)
    facts = {"generation": group.round.number, "step": 0, "samples": 2, "micro_batch": 0, "ends": ends}
    group.hear(wire.ShortOfMemory(worker_id=worker.id, **facts), at_s)
    if ends:
        group.hear(wire.WorkerDown(worker_id=worker.id, code=EXIT_MEMORY), at_s)


@pytest.mark.parametrize("ends", [False, True])
def test_a_worker_that_runs_out_of_memory_uses_no_retry_and_there_are_more_parts(ends):
    """In a forward it keeps what it has, and stays; amid an update it has to end."""
    group, _ = training(Grid(4, 1), "a", "b", "c", "d")
    short(group, "a", 3.0, ends=ends)
    assert any(isinstance(order, wire.StartWorker) for _, order in group.outbox) is ends
    assert group.places.memory.failed == 1
    assert not group.failures
    assert not group.news
    assert {place for place in told(group).values() if place[0] >= 0} >= {(0, 0), (0, 1)}, "in two parts from now on"


def test_a_part_that_does_not_fit_where_its_owner_has_said_how_many_is_told():
    spec = JobSpec(name="job", argv=("x",), cwd="/", max_workers=8, stages=2)
    group = build_group("job-1", spec, log_of=str, env=dict)
    group.move(1, on("a", "b"), 0, 0.0, Form(Grid(1, 2)))
    ready(group, 1.0)
    short(group, "a", 2.0)
    (news,) = group.news
    assert news.outcome is Outcome.FAILED
    assert "of 2 parts; next: parallel.stages: auto" in news.why


def in_one_stage(*nodes, **facts):
    spec = JobSpec(name="job", argv=("x",), cwd="/", max_workers=8, **facts)
    group = build_group("job-1", spec, log_of=str, env=dict)
    group.move(1, on(*nodes), 0, 0.0)
    ready(group, 1.0)
    return group


def test_a_session_in_parts_whose_job_has_one_stage_is_as_many_copies_as_workers():
    group = in_one_stage("a", "b")
    assert sorted(told(group).values()) == [(0, 0), (1, 0)]
    all_join(group, 2.0)
    group.news.clear()
    group.move(2, on("a", "b"), 0, 3.0)
    assert [news.outcome for news in group.news] == [Outcome.MOVED], "it trains as that"
    group.news.clear()
    group.move(3, on("a", "b", "c"), 0, 4.0)
    ready(group, 5.0)
    assert sorted(told(group).values()) == [(0, 0), (1, 0), (2, 0)]
    all_join(group, 6.0)
    kill(group, "b", 7.0)
    assert sorted(told(group).values()) == [(0, 0), (1, 0)]


def test_the_next_controller_knows_that_a_job_of_one_stage_is_copies():
    group = in_one_stage("a", "b")
    told(group)
    all_join(group, 2.0)
    census = Census.from_facts(group.census.facts())
    after = build_group("job-1", group.spec, log_of=str, env=dict)
    after.before = census
    after.adopt(2, on("a", "b"), 0, trains=True, wall_s=3.0)
    assert (after.places.formed, after.places.grid) == (Grid(2), Grid(2))


def test_a_session_in_parts_is_told_where_its_job_asks_for_ranges():
    group = in_one_stage("a", shards=Shards.ON)
    (news,) = group.news
    assert news.outcome is Outcome.FAILED
    assert "train it without stages" in news.why


def test_the_next_controller_knows_who_sat_where():
    group, places = training(Grid(2, 2), "a", "b", "c", "d", "e")
    (spare,) = {"a", "b", "c", "d", "e"} - places.keys()
    census = Census.from_facts(group.census.facts())
    assert census == group.census
    after = a_group()
    after.before = census
    after.adopt(1, on("a", "b", "c", "d", "e"), 0, trains=True, wall_s=9.0, form=Form(Grid(2, 2)))
    for node in ("a", "b", "c", "d", "e"):
        after.agent_came(node, [on_node(group, node).id], 9.0)
    after.all_agents_came(9.0)
    assert after.outbox == []
    assert after.training
    lost = next(iter(places))
    kill(after, lost, 10.0)
    assert told(after) == {node: place for node, place in places.items() if node != lost} | {spare: places[lost]}


def test_the_next_controller_knows_of_which_grid_the_places_are_though_another_was_ordered():
    """It was ordered to be one part, and nobody had begun with that when its controller went."""
    group, _ = training(Grid(1, 3), "a", "b", "c")
    group.move(2, on("a", "b", "c", "d"), 0, 3.0, Form(Grid(4, 1)))
    after = a_group()
    after.before = Census.from_facts(group.census.facts())
    assert after.before == group.census
    after.adopt(2, on("a", "b", "c", "d"), 0, trains=False, wall_s=9.0, form=Form(Grid(4, 1)))
    after.places.blocks = (1,) * 12
    for node in ("a", "b", "c", "d"):
        after.agent_came(node, [on_node(group, node).id], 9.0)
    after.all_agents_came(9.0)
    after.move(2, on("a", "b", "c", "d"), 0, 9.0, Form(Grid(4, 1)))
    ready(after, 10.0)
    assert sorted(told(after).values()) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_workers_on_demand_are_one_whole_copy():
    group = a_group()
    group.move(1, on("a", "b", "c", "d"), 0, 0.0, Form(Grid(2, 2), frozenset({"c", "d"})))
    ready(group, 1.0)
    seated = told(group)
    assert {seated["c"], seated["d"]} == {(0, 0), (0, 1)}


def test_copies_of_a_part_that_are_all_on_noticed_nodes_are_kept_by_who_stays_in_the_words_of_the_grid_that_trains():
    """Another order is under way by then: its number is of a grid that nobody is in yet."""
    group, places = training(Grid(2, 2), "n1", "n2", "n3", "n4")
    formed = group.round.number
    (goes,) = {part for _, part in places.values()} - {0}
    doomed = {node for node, (_, part) in places.items() if part == goes}
    group.move(2, on("n1", "n2", "n3", "n4", "n5", "n6"), 0, 3.0, Form(Grid(3, 2)))
    group.prepare(doomed, None)
    ((node, keep),) = sent(group, wire.Keep)
    assert places[node][1] != goes
    assert (keep.generation, keep.parts) == (formed, (goes,))
    group.prepare(doomed, None)
    assert not sent(group, wire.Keep), "it knows"


def test_who_will_take_the_place_of_one_that_is_noticed_keeps_its_part():
    group, places = training(Grid(2, 2), "n1", "n2", "n3", "n4")
    group.prepare({"n1"}, Grid(1, 2))
    assert not sent(group, wire.Keep), "the other copy is whole"
    group.prepare({"n1", next(node for node in places if places[node] == (1, 1 - places["n1"][1]))}, Grid(1, 2))
    assert not sent(group, wire.Keep), "so is one of what two have left of theirs"


CLOSED = "Connection closed by peer"
BOOM = "Traceback (most recent call last):\n  ...\nValueError: boom"


@pytest.mark.parametrize("forming", [False, True])
def test_what_is_told_of_a_script_that_fails_is_its_own_error_and_not_the_cry_of_a_neighbour(forming):
    """Who is left cries at once; that the other has ended, its agent says when its process is gone."""
    group, places = training(Grid(1, 2), "a", "b")
    first, second = sorted(places, key=places.get)
    if forming:
        group.move(2, on("a", "b"), 12, 9.0, Form(Grid(1, 2)))
        told(group)
    cries = {"generation": group.round.number, "step": 10, "why": CLOSED}
    group.hear(wire.Broke(worker_id=on_node(group, first).id, **cries), 10.0)
    group.hear(wire.WorkerDown(worker_id=on_node(group, second).id, code=1, error=BOOM), 11.0)
    for at_s in (11.5, 12.5, 13.5):
        group.tick(at_s)
    (news,) = [each for each in group.news if each.outcome is Outcome.RESTARTED]
    assert (news.why, news.exit_code) == (BOOM, 1)
    assert group.failures == {"user": 1}


def test_a_cry_of_one_that_fails_is_told_if_no_word_of_its_end_comes():
    group, places = training(Grid(1, 2), "a", "b")
    for node, why in zip(sorted(places), ("ValueError: boom", CLOSED), strict=True):
        cries = {"generation": group.round.number, "step": 10, "why": why}
        group.hear(wire.Broke(worker_id=on_node(group, node).id, **cries), 10.0)
    group.tick(12.5)
    assert [each.why for each in group.news] == ["ValueError: boom"]

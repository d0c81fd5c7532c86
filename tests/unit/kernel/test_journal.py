"""A life written down, read back, and lived again."""

from __future__ import annotations

import json
import math
import typing
from dataclasses import replace

import pytest

from sublet.domain.actions import MakePlan, RefusePlan, ResizeJob, SetTimer, StartJob, StopJob, TellUser
from sublet.domain.budget import ORG, UNLIMITED, Budget, Holder, Level, Limit, Period
from sublet.domain.events import (
    AvailabilityChanged,
    BudgetChanged,
    Event,
    JobCancelled,
    JobChanged,
    JobFailed,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeNoticed,
    NodeReady,
    NodeReleased,
    NodesFound,
    NodeSilent,
    NodeSlow,
    NodeThreatened,
    OffersChanged,
    PlanMade,
    PriceChanged,
    PriceDoubted,
    PriceHeardLate,
    ProgressReported,
    PurseSet,
    RentRefused,
    TimerFired,
)
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Grid, Shape
from sublet.domain.timers import PlanAgain, RetryOffer
from sublet.errors import BadInput, InvariantBroken, SubletError
from sublet.kernel.following import Follower
from sublet.kernel.journal import (
    event_from_json,
    header_line,
    kind_from_header,
    line_from,
    replay,
    steps_from,
)
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.srtf import Srtf

PLAN = Plan(
    shapes={"a": Shape("p", 5, grid=Grid(2, 2), batch=64), "b": None},
    hold={"o": 3},
    reasons={"a": "it is short"},
    value_of_time_usd_per_h=1.5,
    congestion_usd_per_gpu_h={"p": 0.25},
    ask_again_s=9.5,
)
ONE_OF_EACH = [
    JobSubmitted(0.1, a_job("a", gpus=2, max_gpus=4, deadline_s=9.5, model="bert", group="g", weight=2.0)),
    JobCancelled(1.0, "a"),
    JobChanged(1.0, a_job("a", gpus=2, restart_s=3.5, paused=True)),
    JobStarted(1.0, "a", 1, 0.5, 2.0),
    JobResized(1.0, "a", 2, 0.1 + 0.2, math.inf),
    JobStopped(1.0, "a", 3, 1e-300),
    ProgressReported(1.0, "a", 1 / 3),
    JobFinished(1.0, "a"),
    JobFailed(1.0, "a", 'out of "memory"\n'),
    NodeReady(1.0, "n1"),
    NodeNoticed(1.0, "n1", 121.0),
    NodeSlow(1.0, "n1", "it limps"),
    NodeThreatened(1.0, "n1"),
    NodeSilent(1.0, "n1", "not heard for 25 s"),
    NodeLost(1.0, "n1"),
    NodeReleased(1.0, "n1"),
    RentRefused(1.0, "n1", "quota"),
    RentRefused(1.0, "n1", "no clear answer", paid=True),
    PriceChanged(1.0, "o", Price(123_456)),
    PriceDoubted(1.0, "o", Price(654_321)),
    PriceHeardLate(2.0, "o", Price(123_456), 1.5),
    AvailabilityChanged(1.0, "o", None),
    AvailabilityChanged(1.0, "o", 3),
    BudgetChanged(1.0, Budget(burn=Price(5), purse=Money(7))),
    BudgetChanged(1.0, UNLIMITED),
    PurseSet(1.0, Holder(Level.TEAM, "vision"), Money(7), Period.MONTH, 1_800_000_000.0),
    PurseSet(1.0, ORG, None),
    NodesFound(1.0, 7),
    OffersChanged(1.0, (an_offer("o", pool="p"), an_offer("b")), {"o": Limit(max_nodes=2)}, {"p": 8}),
    TimerFired(1.0, RetryOffer("o")),
    PlanMade(1.0, PLAN, 17),
]


def a_life():
    """A short life with every kind of order in it, as a journal."""
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(max_nodes=2)})
    driver.submit(a_job("long", work=900.0, gpus=8, min_gpus=4))
    driver.settle(Srtf())
    driver.now_s = 10.0
    driver.submit(a_job("short", work=10.0, gpus=4))
    driver.settle(Srtf())
    driver.tell(NodeNoticed(15.0, "n1", 20.0))
    driver.settle(Srtf())
    driver.tell(JobFinished(40.0, "short"))
    driver.settle(Srtf())
    return driver.journal


def names_of_orders(journal):
    return {action["type"] for line in journal[1:] for action in json.loads(line)["actions"]}


# ---------------------------------------------------------------------- there and back


def test_there_is_an_example_of_every_event():
    assert {type(event) for event in ONE_OF_EACH} == set(typing.get_args(Event))


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_every_event_comes_back_as_it_was(event):
    line = line_from(event, [])
    assert "\n" not in line
    back = event_from_json(json.loads(line)["event"])
    if isinstance(event, JobSubmitted | JobChanged):  # how fast a job goes is not written down
        back = replace(back, job=replace(back.job, speed=event.job.speed))
    assert back == event
    assert line_from(back, []) == line


def test_a_line_is_plain_json_without_infinities():
    def refuse(name):
        raise AssertionError(name)

    for event in ONE_OF_EACH:
        json.loads(line_from(event, []), parse_constant=refuse)


def test_orders_are_written_with_their_names_and_facts():
    orders = [
        StartJob("a", 1, Shape("p", 4), (("n1", 4),)),
        ResizeJob("a", 2, Shape("p", 4), (("n1", 2), ("n2", 2))),
        StopJob("a", 3, resumable=False),
        SetTimer(PlanAgain(), 5.0),
        TellUser("hello", "a"),
        MakePlan(),
    ]
    written = json.loads(line_from(NodeReady(1.0, "n1"), orders))["actions"]
    assert [facts["type"] for facts in written] == [type(order).__name__ for order in orders]
    assert written[1]["placement"] == [["n1", 2], ["n2", 2]]
    assert written[2] == {"type": "StopJob", "job_id": "a", "generation": 3, "resumable": False}
    assert written[5] == {"type": "MakePlan"}


@pytest.mark.parametrize(
    "refusal", [RefusePlan("GPUs in pool p", 99, 8), RefusePlan("hold", "x", "an offer that is there: o")], ids=str
)
def test_a_refusal_comes_back_as_it_was(refusal):
    (step,) = steps_from([line_from(PlanMade(1.0, PLAN, 17), [refusal])])
    (back,) = step.orders
    assert back == refusal
    assert str(back.error(1.0)) == str(refusal.error(1.0))


def test_the_header_says_what_could_be_rented():
    offer = an_offer("o", market=Market.ON_DEMAND)
    facts = json.loads(header_line([offer], {"o": Limit(min_nodes=1)}, Budget(burn=Price(7))))
    assert facts["journal"] == 1
    assert facts["offers"][0]["market"] == "on-demand"
    assert facts["limits"] == {"o": {"min_nodes": 1, "max_nodes": None}}
    assert facts["budget"]["burn"] == {"micro_usd_per_h": 7}


# ---------------------------------------------------------------------- lived again


def test_a_life_lived_again_ends_in_the_same_state():
    journal = a_life()
    assert names_of_orders(journal) >= {"RentNode", "StartJob", "StopJob", "ResizeJob", "ReleaseNode", "MakePlan"}
    kernel = replay(journal)
    assert kernel.seen == len(journal) - 1
    assert kernel.now_s == 40.0
    assert list(kernel.jobs) == ["long"]


def test_a_life_without_events_is_a_kernel_at_rest():
    assert replay([header_line([an_offer("o")], {}, UNLIMITED)]).seen == 0


@pytest.mark.parametrize("kind", ["StartJob", "RentNode", "StopJob", "MakePlan", "ReleaseNode"])
def test_an_order_that_was_tampered_with_is_found(kind):
    journal = a_life()
    at = next(n for n, line in enumerate(journal) if n and f'"type":"{kind}"' in line.partition('"actions"')[2])
    facts = json.loads(journal[at])
    facts["actions"] = [action for action in facts["actions"] if action["type"] != kind]
    journal[at] = json.dumps(facts)
    with pytest.raises(InvariantBroken, match=f"line {at + 1}"):
        replay(journal)


def test_the_number_of_a_line_counts_those_before_the_kernel_that_goes_on():
    header, *lines = a_life()
    cut = len(lines) // 2
    with pytest.raises(BadInput) as caught:
        replay([*lines[cut:], "{}"], kernel=replay([header, *lines[:cut]]))
    assert caught.value.line == len(lines) + 2


def a_loss():
    """The journal of a job that goes on with its survivors, and the order that says so."""
    driver = Driver([an_offer("o", pool="p", boot_s=600.0)], limits={"o": Limit(min_nodes=2, max_nodes=2)})
    driver.submit(a_job("a", gpus=8, min_gpus=1, restart_s=10.0))
    driver.settle(Equal())
    (move, *_) = driver.tell(NodeLost(10.0, "n1"))
    return driver.journal, move


def test_survivors_train_on_in_a_replay_as_they_did():
    journal, move = a_loss()
    assert isinstance(move, ResizeJob)
    assert replay(journal).jobs["a"].phase is Phase.RESIZING


@pytest.mark.parametrize("facts", [{"generation": 7}, {"placement": [["n2", 3]]}, {"job_id": "b"}])
def test_what_survivors_were_told_is_compared_but_for_their_speed(facts):
    journal, _ = a_loss()
    told = json.loads(journal[-1])
    told["actions"][0].update(facts)
    with pytest.raises(InvariantBroken, match=f"line {len(journal)}"):
        replay([*journal[:-1], json.dumps(told)])


def test_survivors_who_could_not_train_stand_still_in_a_replay_too():
    journal, _ = a_loss()
    told = json.loads(journal[-1])
    told["actions"].pop(0)
    assert replay([*journal[:-1], json.dumps(told)]).jobs["a"].phase is Phase.BROKEN


def test_an_event_that_was_tampered_with_is_found_where_its_orders_differ():
    journal = a_life()
    journal[1] = journal[1].replace('"gpus":8', '"gpus":4')
    at = next(n for n, line in enumerate(journal) if '"type":"PlanMade"' in line)
    journal[at] = journal[at].replace('"gpus":8', '"gpus":4')
    with pytest.raises(InvariantBroken):
        replay(journal)


def a_life_with_a_refused_plan():
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(max_nodes=1)})
    driver.submit(a_job("a", gpus=4), a_job("b", gpus=4))
    driver.expect_refusal(Plan(shapes={"a": Shape("p", 4), "b": Shape("p", 4)}, hold={"o": 1}))
    driver.ring([PlanAgain()])
    driver.settle(Srtf())
    return driver


def test_a_refused_plan_is_part_of_a_life():
    driver = a_life_with_a_refused_plan()
    assert "RefusePlan" in names_of_orders(driver.journal)
    assert replay(driver.journal).supply.facts() == driver.kernel.supply.facts()


def test_a_plan_that_was_refused_is_not_promised_when_its_life_is_followed():
    journal = a_life_with_a_refused_plan().journal
    follower = kind_from_header(json.loads(journal[0]), Follower)
    for step in steps_from(journal[1:4]):
        follower.follow(step.event, step.orders)
    assert (list(follower.active), follower.seen) == ([], 3)


def test_a_plan_that_an_older_version_refused_half_way_is_followed_by_its_orders():
    """Version 2 promised what it then refused, and its driver set a timer."""
    journal = a_life_with_a_refused_plan().journal
    facts = json.loads(journal[3])
    facts["actions"] = [{"type": "RentNode", "node_id": "n1", "offer_id": "o"}]
    facts["actions"] += [{"type": "SetTimer", "timer": "retry o", "at_s": 10.0}]
    follower = kind_from_header(json.loads(journal[0]), Follower)
    for step in steps_from((*journal[1:3], json.dumps(facts))):
        follower.follow(step.event, step.orders)
    assert (list(follower.active), list(follower.cluster.nodes)) == (["a", "b"], ["n1"])


def test_news_that_an_older_version_refused_count_when_its_life_is_followed():
    journal = a_life()
    follower = kind_from_header(json.loads(journal[0]), Follower)
    follower.follow(NodeLost(7.0, "n77"), [SetTimer(RetryOffer("o"), 10.0)])
    assert (follower.seen, follower.now_s) == (1, 7.0)


# ---------------------------------------------------------------------- broken


BROKEN = [
    "",
    "no json",
    "{",
    "[]",
    "null",
    "7",
    "{}",
    '{"event": null, "actions": []}',
    '{"event": 7, "actions": []}',
    '{"event": {"type": "NoSuchEvent", "at_s": 1.0}, "actions": []}',
    '{"event": {"type": "Budget"}, "actions": []}',
    '{"event": {"type": "Event"}, "actions": []}',
    '{"event": {"type": "NodeReady", "at_s": 1.0}, "actions": []}',
    '{"event": {"type": "NodeReady", "at_s": "soon", "node_id": "n1"}, "actions": []}',
    '{"event": {"type": "NodeReady", "at_s": 1.0, "node_id": ["n1"]}, "actions": []}',
    '{"event": {"type": "TimerFired", "at_s": 1.0, "timer": 7}, "actions": []}',
    '{"event": {"type": "AvailabilityChanged", "at_s": 1.0, "offer_id": "o", "nodes": "two"}, "actions": []}',
    '{"event": {"type": "AvailabilityChanged", "at_s": 1.0, "offer_id": "o", "nodes": -1}, "actions": []}',
    '{"event": {"type": "PriceChanged", "at_s": 1.0, "offer_id":"o", "price":{"micro_usd_per_h": -5}}, "actions": []}',
    '{"event": {"type": "PriceChanged", "at_s": 1.0, "offer_id": "o", "price": null}, "actions": []}',
    '{"event": {"type": "PlanMade", "at_s": 1.0, "plan": {"shapes": []}, "seen": 0}, "actions": []}',
    '{"event": {"type": "BudgetChanged", "at_s": 1.0, "budget": {}}}',
]


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_bad_input_with_its_number(line):
    journal = [*a_life()[:3], line]
    with pytest.raises(BadInput) as caught:
        replay(journal, source="life.jsonl")
    assert (caught.value.source, caught.value.line) == ("life.jsonl", 4)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        '{"journal": 99, "offers": [], "limits": {}, "budget": {}}',
        '{"journal": 1}',
        '{"journal": 1, "offers": 7, "limits": {}, "budget": {}}',
        '{"journal": 1, "offers": [], "limits": {}, "budget": {}}',
        '{"journal": 1, "offers": [{"id": ""}], "limits": {}, "budget": {}}',
    ],
)
def test_a_broken_header_is_bad_input_in_line_one(line):
    with pytest.raises(BadInput) as caught:
        replay([line, *a_life()[1:]], source="life.jsonl")
    assert (caught.value.source, caught.value.line) == ("life.jsonl", 1)


def test_an_empty_journal_is_bad_input():
    with pytest.raises(BadInput, match="empty"):
        replay([], source="life.jsonl")


def test_what_cannot_have_happened_is_told_with_its_line():
    journal = a_life()
    journal.insert(2, line_from(NodeLost(0.0, "n77"), []))
    with pytest.raises(SubletError, match="n77"):
        replay(journal)

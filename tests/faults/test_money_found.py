"""Lives in which the ledger was not the bill, shrunk as they were found. Each broke I6 before its mend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.events import PriceChanged
from sublet.runtime.clock import Clock
from sublet.runtime.controller.core import pump
from sublet.runtime.controller.core import recovery as away
from sublet.runtime.controller.core.pump import Pump
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.money.bill import Bill
from sublet.runtime.controller.nodes import leases
from sublet.runtime.controller.nodes.leases import Leases
from sublet.runtime.providers.aws.offers import SpotPrices
from sublet_lab.world.plain import PlainCloud
from sublet_lab.world.ray import RayCloud
from sublet_lab.world.stage import Stage
from sublet_lab.world.story import draw_story
from tests.rigs.shrunk import a_job, a_story, breaks

NO_ROOM_FOR_A_MARK = a_story(
    2736,
    [a_job("job0", 25.883, 27, 1.0, 2.613, 1.673, hang_s=300.0, checkpoint_every_s=8.0)],
    [(57.997, "full_disk", 670093110)],
)
AN_AGENT_THAT_SLEPT = a_story(
    13241,
    [a_job("job0", 12.173, 73, 0.2, 1.06, 0.417, hang_s=300.0, on_node_loss="restart")],
    [(42.558, "stop_agent", 128038063), (72.941, "kill_controller", 250074667)],
)
ANOTHER_AGENT_THAT_SLEPT = a_story(
    7746,
    [a_job("job0", 83.719, 268, 0.5, 2.949, 2.229, hang_s=60.0)],
    [(228.823, "stop_agent", 103360894), (243.857, "crash_commit", 294760923)],
    told_inside=True,
)
STARTS_OF_A_SLOW_CLOUD = a_story(
    19675,
    [a_job("job1", 39.068, 10, 1.0, 2.418, 1.141, hang_s=300.0, on_node_loss="replace", checkpoint_every_s=8.0)],
    [(42.906, "list_lie", 702230488), (55.111, "crash_commit", 410174462), (71.504, "list_lie", 195590604)],
    cloud="aws",
)
DEARER_WHILE_NOBODY_WAS_THERE = a_story(
    17628,
    [a_job("job1", 57.166, 10, 0.5, 1.715, 1.585, checkpoint_every_s=25.0)],
    [(24.981, "crash_commit", 193755626), (63.232, "reprice", 249898241)],
    paces=Paces(
        tick_s=1.0,
        save_s=5.0,
        sweep_s=15.0,
        agent_comes_s=45.0,
        agents_come_back_s=6.0,
        events_a_snapshot=5,
        jobs_kept=0,
        jobs_shelved=1,
        events_a_file=10,
        history_kept=60,
    ),
    told_inside=True,
)
DEARER_WITHOUT_ROOM = a_story(
    6188,
    [a_job("job0", 45.017, 551, 0.5, 2.805, 0.422, max_workers=3, hang_s=60.0, on_node_loss="replace")],
    [
        (74.61, "restart_machine", 422635064),
        (161.386, "user_scale", 378673778),
        (200.077, "full_disk", 305870220),
        (206.477, "reprice", 87033222),
    ],
    gpus_per_node=2,
    told_inside=True,
)
DEARER_AFTER_A_BOOT = a_story(
    8075,
    [a_job("job0", 55.708, 10, 0.5, 3.128, 2.637)],
    [
        (39.107, "crash_commit", 973533434),
        (64.191, "restart_machine", 437026464),
        (86.1, "reprice", 1001808066),
    ],
    told_inside=True,
)
CHEAPER_AND_NOBODY_HEARD_IT = a_story(
    6620,
    [a_job("job0", 82.732, 285, 0.5, 0.822, 1.14, on_node_loss="replace", checkpoint_every_s=8.0)],
    [(127.593, "reprice", 182311434), (164.787, "crash_call", 402191423)],
    cloud="aws",
    paces=Paces(tick_s=1.0, sweep_s=15.0, rent_tries=3, events_a_snapshot=20),
    told_inside=True,
)
A_REFUSAL_AFTER_AN_ERROR = a_story(
    8341,
    [a_job("job0", 42.913, 84, 1.0, 2.554, 0.728, checkpoint_every_s=8.0)],
    [(87.295, "rent_lie", 826790160), (135.804, "no_storage", 310698092), (139.187, "end_agent", 261039155)],
)
A_REFUSAL_FOR_THE_NEXT_CONTROLLER = a_story(
    10926,
    [
        a_job("job0", 72.96, 10, 0.2, 3.956, 0.64, hang_s=60.0, on_node_loss="replace", checkpoint_every_s=8.0),
        a_job("job2", 72.68, 10, 0.5, 2.244, 0.848, hang_s=60.0, on_node_loss="fail", checkpoint_every_s=25.0),
    ],
    [(74.007, "second_controller", 830187214), (109.624, "rent_lie", 656175736)],
    told_inside=True,
)
ASLEEP_AND_THEN_A_CLOCK_THAT_IS_BEHIND = a_story(
    3819,
    [a_job("job0", 18.237, 120, 1.0, 1.48, 0.103, hang_s=300.0, checkpoint_every_s=8.0)],
    [(119.286, "stop_controller", 244701294), (154.117, "restart_machine", 933600898)],
)
A_RECORD_WRITTEN_ANEW = a_story(
    16577,
    [a_job("job0", 16.244, 17, 0.5, 0.617, 2.937, max_workers=3, on_node_loss="replace", checkpoint_every_s=8.0)],
    [
        (36.202, "no_storage", 986397331),
        (42.274, "second_controller", 800607388),
        (94.162, "not_ended", 1015401272),
        (222.918, "damaged_record", 332249335),
        (273.483, "restart_machine", 91827390),
    ],
    cloud="aws",
    most_nodes=1,
    told_inside=True,
)
FAILED_ON_DEMAND = a_story(
    1902,
    [
        a_job("job0", 81.695, 10, 0.2, 2.302, 2.21, hang_s=300.0, on_node_loss="fail"),
        a_job("job1", 41.147, 136, 0.2, 0.998, 0.817, max_workers=2, hang_s=60.0, on_node_loss="fail"),
        a_job("job2", 78.3, 281, 0.2, 3.805, 1.815, max_workers=3),
    ],
    [(44.045, "price_garbage", 446220261), (160.464, "take_untold", 806192848)],
    cloud="aws",
    policy="price",
    most_nodes=1,
    told_inside=True,
)
FAILED_ON_DEMAND_AND_LISTED_LATE = a_story(
    20130,
    [
        a_job("job0", 1.1, 115, 0.2, 3.671, 1.976, hang_s=60.0, on_node_loss="restart"),
        a_job("job1", 30.152, 10, 1.0, 2.891, 0.932),
        a_job("job2", 47.255, 127, 0.5, 3.134, 0.971),
    ],
    [(122.419, "flags", 727057872), (145.46, "take_told", 30079058)],
    cloud="aws",
)
ANOTHER_PRICE_JUST_BEFORE_A_BOOT = a_story(
    7118,
    [
        a_job("job0", 28.596, 31, 0.5, 0.51, 2.734, on_node_loss="replace", checkpoint_every_s=8.0),
        a_job("job1", 67.814, 15, 1.0, 1.028, 2.068, hang_s=60.0, checkpoint_every_s=25.0),
    ],
    [(76.3, "reprice", 591811053), (95.747, "restart_machine", 820702390)],
)
ANOTHER_PRICE_BEHIND_NONSENSE = a_story(
    26,
    [a_job("job1", 82.752, 280, 0.2, 3.466, 1.422, hang_s=300.0, on_node_loss="fail", checkpoint_every_s=8.0)],
    [(106.789, "price_garbage", 1050693263), (121.504, "reprice", 214484541)],
    cloud="aws",
)
DEARER_WHILE_THE_CONTROLLER_SLEPT = a_story(
    2360,
    [
        a_job("job1", 74.775, 23, 0.5, 2.223, 1.708, hang_s=300.0),
        a_job("job2", 50.884, 10, 0.5, 2.732, 0.702),
    ],
    [(91.583, "stop_controller", 346153383), (103.308, "reprice", 616159420)],
)
HEARD_AFTER_OTHER_THINGS = a_story(
    51,
    [a_job("job0", 21.792, 600, 0.2, 1.925, 1.82, checkpoint_every_s=8.0)],
    [
        (60.767, "reprice", 845197393),
        (108.21, "stop_controller", 469828692),
        (140.244, "stop_controller", 986990922),
        (144.632, "reprice", 974681729),
    ],
    told_inside=True,
)
HEARD_AFTER_A_SCRIPT = a_story(
    141,
    [a_job("job1", 30.015, 119, 1.0, 3.956, 1.985, sdk=False)],
    [(29.675, "reprice", 1002231788), (109.432, "stop_controller", 471046697), (110.188, "reprice", 34144552)],
    told_inside=True,
)
HEARD_AFTER_AN_ORDER = a_story(
    210,
    [
        a_job("job0", 60.19, 10, 0.2, 2.301, 1.972, hang_s=60.0, on_node_loss="replace", checkpoint_every_s=25.0),
        a_job("job2", 26.315, 10, 1.0, 3.435, 2.575, hang_s=300.0),
    ],
    [(44.544, "stop_controller", 968340045), (63.41, "reprice", 67557440)],
)
BACK_BEFORE_THE_CLOCK_WAS_SET = a_story(
    7872,
    [a_job("job0", 3.062, 353, 1.0, 2.117, 2.865, hang_s=60.0, checkpoint_every_s=25.0)],
    [
        (151.024, "end_agent", 91445328),
        (230.999, "restart_machine", 910548440),
        (239.869, "short_of_memory", 752187114),
        (265.593, "take_told", 701631531),
    ],
    cap=2.0,
)
HEARD_OFTEN_AND_WITHOUT_RECORDS = draw_story(235, ("stop_controller", "reprice"), cloud="plain")


@pytest.mark.parametrize(
    "story",
    [
        AN_AGENT_THAT_SLEPT,
        ANOTHER_AGENT_THAT_SLEPT,
        STARTS_OF_A_SLOW_CLOUD,
    ],
    ids=lambda story: str(story.seed),
)
def test_a_time_that_was_measured_is_believed_whoever_comes_back(monkeypatch, story):
    """Agents that lived longer than their lease proved a clock wrong that was right: seconds of rent were missing."""
    assert not breaks(story)
    monkeypatch.setattr(Clock, "certain", property(lambda self: False, lambda self, _: None), raising=False)
    assert breaks(story) == "I6"


def test_controllers_that_come_and_go_without_room_for_a_mark_lose_no_time():
    assert not breaks(NO_ROOM_FOR_A_MARK)


def test_a_price_counts_from_when_it_began_not_from_when_somebody_was_there_to_hear_it(monkeypatch):
    assert not breaks(DEARER_WHILE_NOBODY_WAS_THERE)
    sort = away._ends_first
    monkeypatch.setattr(
        away, "_ends_first", lambda told, first, now_s, latest_s, _: sort(told, first, now_s, latest_s, ())
    )
    assert not breaks(DEARER_WHILE_NOBODY_WAS_THERE)  # heard in any order it counts from when it began
    monkeypatch.setattr(pump, "_heard_at", lambda event, at_s: replace(event, at_s=at_s))
    assert breaks(DEARER_WHILE_NOBODY_WAS_THERE) == "I6"


@pytest.mark.parametrize("story", [DEARER_WITHOUT_ROOM, DEARER_AFTER_A_BOOT], ids=lambda story: str(story.seed))
def test_a_price_counts_from_when_it_began_also_after_a_boot(story):
    assert not breaks(story)


def test_a_price_of_ec2_counts_from_when_ec2_says(monkeypatch):
    """A controller asked for it and was gone before it could write the answer down."""
    assert not breaks(CHEAPER_AND_NOBODY_HEARD_IT)
    ask = SpotPrices.changes

    async def as_of_now(self):
        return [replace(change, at_s=self._clock.now_s()) for change in await ask(self)]

    monkeypatch.setattr(SpotPrices, "changes", as_of_now)
    assert breaks(CHEAPER_AND_NOBODY_HEARD_IT) == "I6"


def test_a_refusal_says_nothing_of_an_earlier_call_that_nobody_heard_the_answer_of(monkeypatch):
    """An instance ran, was found as a stranger and ended, and was in no ledger."""
    assert not breaks(A_REFUSAL_AFTER_AN_ERROR)
    assert not breaks(A_REFUSAL_FOR_THE_NEXT_CONTROLLER)
    rent = Leases.rent

    async def as_if_nobody_had_asked(self, action, *, again=False):
        await rent(self, action)

    monkeypatch.setattr(Leases, "rent", as_if_nobody_had_asked)
    assert breaks(A_REFUSAL_FOR_THE_NEXT_CONTROLLER) == "I6"


def test_time_that_a_clock_has_lost_is_found_again_by_the_record_of_a_node(monkeypatch):
    """Its controller slept, its machine was restarted, and came back with a clock that was behind."""
    assert not breaks(ASLEEP_AND_THEN_A_CLOCK_THAT_IS_BEHIND)
    monkeypatch.setattr(leases, "find_lost_time", lambda *_, **__: 0.0)
    assert breaks(ASLEEP_AND_THEN_A_CLOCK_THAT_IS_BEHIND) == "I6"


def test_a_record_that_was_written_anew_makes_no_node_younger():
    """Its order was taken to be that of the new record: minutes of rent were missing."""
    assert not breaks(A_RECORD_WRITTEN_ANEW)


@pytest.mark.parametrize(
    "story", [FAILED_ON_DEMAND, FAILED_ON_DEMAND_AND_LISTED_LATE], ids=lambda story: str(story.seed)
)
def test_what_fails_on_demand_counts_until_it_is_seen_to_have_ended(story):
    """EC2 says when it took spot back, and nothing of what it could not keep running: then rather too much."""
    assert not breaks(story)


def test_a_clock_that_is_ahead_after_a_boot_may_lay_a_record_across_another_price(monkeypatch):
    """It is ahead by ten seconds at most, rather than behind; these are charged at the price after, not before."""
    assert not breaks(ANOTHER_PRICE_JUST_BEFORE_A_BOOT)
    monkeypatch.setattr(Stage, "clock_off_s", property(lambda self: 0.0, lambda self, _: None))
    assert breaks(ANOTHER_PRICE_JUST_BEFORE_A_BOOT) == "I6"


def test_no_price_counts_while_nonsense_is_published_in_its_place():
    """A false alarm: the world charged what nobody could read."""
    assert not breaks(ANOTHER_PRICE_BEHIND_NONSENSE)


def test_a_price_that_is_heard_after_a_sleep_counts_from_when_it_began(monkeypatch):
    """A false alarm: the plain cloud told it as of when the controller woke up, and charged it from before."""
    assert not breaks(DEARER_WHILE_THE_CONTROLLER_SLEPT)
    monkeypatch.setattr(PlainCloud, "in_cloud_time", lambda self, at_s, clock: clock.now_s())
    assert breaks(DEARER_WHILE_THE_CONTROLLER_SLEPT) == "I6"


def test_the_pump_leaves_a_price_that_is_told_late_at_its_own_time(monkeypatch):
    """Where nothing later was heard before it; were it heard as of now, the story would break its law."""
    hear = Pump._handle

    def at_its_hearing(self, event):
        return hear(self, replace(event, at_s=self.now_s()) if isinstance(event, PriceChanged) else event)

    monkeypatch.setattr(Pump, "_handle", at_its_hearing)
    assert breaks(DEARER_WHILE_THE_CONTROLLER_SLEPT) == "I6"


@pytest.mark.parametrize(
    "story",
    [HEARD_AFTER_OTHER_THINGS, HEARD_AFTER_A_SCRIPT, HEARD_AFTER_AN_ORDER, HEARD_OFTEN_AND_WITHOUT_RECORDS],
    ids=lambda story: str(story.seed),
)
def test_a_price_counts_from_when_it_began_whatever_was_heard_before_it(monkeypatch, story):
    """It counted from the last thing that had been heard: off by that time at the difference of the prices."""
    assert not breaks(story)
    monkeypatch.setattr(pump, "_heard_at", lambda event, at_s: replace(event, at_s=at_s))
    assert breaks(story) == "I6"


def test_nothing_is_booked_before_the_time_is_found_out(monkeypatch):
    """An agent came back before a clock that was ahead was set back; what is booked, nothing may happen before."""
    assert not breaks(BACK_BEFORE_THE_CLOCK_WAS_SET)
    monkeypatch.setattr(Bill, "waits", property(lambda self: False, lambda self, _: None))
    assert breaks(BACK_BEFORE_THE_CLOCK_WAS_SET) == "I6"


def test_nobody_sets_another_price_on_a_cluster_of_ray(monkeypatch):
    """A false alarm: the world charged what nobody tells there."""
    story = draw_story(0, ("reprice",), cloud="ray")
    assert not breaks(story)
    monkeypatch.setattr(RayCloud, "reprice", PlainCloud.reprice)
    assert breaks(story) == "I6"

"""What seeds have found since: lives as they were found, shrunk, each of which broke its law before the mend."""

from __future__ import annotations

from dataclasses import replace

from sublet.runtime.controller.core.recovery import Absence
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.money import timekeeping
from sublet.runtime.controller.nodes import leases
from sublet.runtime.providers.aws.fleet import Fleet
from sublet.runtime.providers.local.nodes import Nodes
from sublet_lab.world.life import live
from sublet_lab.world.stage import Stage
from sublet_lab.world.story import Fault, JobPlan, Story

NO_ROOM_TO_RENEW = Story(
    seed=20032,
    jobs=(JobPlan(name="job1", at_s=11.787, max_workers=1, steps=409, step_s=0.5, boot_s=1.409, write_s=1.27),),
    faults=(
        Fault(at_s=130.085, kind="crash_call", rng=869786826),
        Fault(at_s=139.977, kind="full_folder", rng=462927851),
    ),
    cloud="aws",
    policy="max-speedup",
    keeps_records=True,
    lease_s=30.0,
    told_inside=True,
    paces=Paces(),
)
NO_ROOM_FOR_A_NOTICE = Story(
    seed=3146,
    jobs=(JobPlan(name="job0", at_s=12.761, max_workers=1, steps=124, step_s=1.0, boot_s=3.402, write_s=1.452),),
    faults=(Fault(at_s=121.035, kind="full_folder", rng=360977717),),
    cloud="local",
    policy="max-speedup",
    keeps_records=True,
    lease_s=30.0,
    told_inside=True,
    paces=Paces(),
)
A_CLOCK_SET_BACK = Story(
    seed=3133,
    jobs=(
        JobPlan(name="job1", at_s=18.969, max_workers=2, steps=332, step_s=1.0, boot_s=0.912, write_s=2.484, sdk=False),
    ),
    faults=(Fault(at_s=190.129, kind="restart_machine", rng=178759027),),
    policy="max-speedup",
    paces=Paces(agents_come_back_s=3.0),
)
A_SLOW_CLOUD_AT_A_START = Story(
    seed=50058,
    jobs=(JobPlan(name="job1", at_s=44.726, max_workers=2, steps=264, step_s=1.0, boot_s=3.952, write_s=2.794),),
    faults=(
        Fault(at_s=21.232, kind="kill_controller", rng=255396548),
        Fault(at_s=108.972, kind="throttle", rng=1058555882),
        Fault(at_s=115.365, kind="restart_machine", rng=177289828),
    ),
    cloud="aws",
    policy="max-speedup",
    keeps_records=True,
    lease_s=30.0,
    paces=Paces(),
)


def breaks(story: Story) -> str:
    """The law."""
    broken = live(story).broken
    return "" if broken is None else broken.law


def test_a_folder_without_room_keeps_no_controller_from_its_instances(monkeypatch):
    """When they expire could not be written down: the controller could not open its cloud, and ended."""
    assert not breaks(NO_ROOM_TO_RENEW)

    def insist(self, instance, until):
        if (record := self._held.get(instance.node_id)) is not None:
            self.keep(replace(record, renewed_unix=until))
        return True

    monkeypatch.setattr(Fleet, "_write_renewed", insist)
    assert breaks(NO_ROOM_TO_RENEW) == "X"


def test_a_notice_is_told_though_it_cannot_be_written_down(monkeypatch):
    """It was lost with the file, and so were those for other nodes of the same moment."""
    assert not breaks(NO_ROOM_FOR_A_NOTICE)
    monkeypatch.setattr(Nodes, "_write_down", lambda self, record: self.records.write(record))
    assert breaks(NO_ROOM_FOR_A_NOTICE) == "E"


def test_a_clock_that_is_behind_after_a_boot_takes_no_rent_out_of_the_ledger(monkeypatch):
    """The machine knows how long it has been on, and a controller how long it may have lived after its last mark."""
    assert not breaks(A_CLOCK_SET_BACK)
    monkeypatch.setattr(timekeeping, "least_away_s", lambda last, today: 0.0)
    monkeypatch.setattr(leases, "find_lost_time", lambda *_, **__: 0.0)  # else the record of a node shows it, later
    assert breaks(A_CLOCK_SET_BACK) == "I6"


def test_what_a_cloud_takes_to_answer_at_a_start_is_time_that_has_passed(monkeypatch):
    """Agents were there in time, and proved a clock wrong that was right: half a minute of rent was missing."""
    nothing = property(lambda self: 0.0, lambda self, grains: None)  # is allowed for the clock, which was set forward
    monkeypatch.setattr(Stage, "most_under_grains", nothing)
    assert not breaks(A_SLOW_CLOUD_AT_A_START)

    def forget_when_it_came(self):
        return self._clock.now_s()

    monkeypatch.setattr(Absence, "_came_s", property(forget_when_it_came, lambda self, _: None), raising=False)
    monkeypatch.setattr(leases, "find_lost_time", lambda *_, **__: 0.0)  # else the record of a node shows it, later
    assert breaks(A_SLOW_CLOUD_AT_A_START) == "I6"

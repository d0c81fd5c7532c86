"""What seeds have found in agents: each life breaks its law without the mend, and none with it."""

from __future__ import annotations

from sublet.runtime.agent.reading import Reading
from sublet.runtime.controller.host import Paces
from sublet_lab.world.life import live
from sublet_lab.world.story import Fault, JobPlan, Story

PACES = Paces(tick_s=0.25, save_s=2.0, sweep_s=5.0, absences=3, agent_comes_s=60.0, agents_come_back_s=3.0)
SCRIPT = {"max_workers": 3, "step_s": 0.2, "sdk": False}
STALE = Story(
    seed=8,
    jobs=(
        JobPlan(name="job0", at_s=69.824, steps=286, boot_s=0.552, write_s=2.711, hang_s=60.0, **SCRIPT),
        JobPlan(name="job1", at_s=72.929, steps=335, boot_s=2.285, write_s=0.408, hang_s=120.0, **SCRIPT),
    ),
    faults=(Fault(at_s=125.443, kind="no_storage", rng=583849164),),
    gpus_per_node=1,
    most_nodes=3,
    purse_usd=None,
    keeps_records=True,
    cloud="plain",
    policy="price",
    think_s=0.02,
    paces=PACES,
    lease_s=30.0,
    span_s=300.0,
    http=False,
    told_inside=True,
)


def test_an_agent_outlives_a_file_server_that_is_away(monkeypatch):
    """It held a file of a script that was started again, and asked when that was read: ESTALE ended the whole node."""
    assert live(STALE).broken is None

    def ask(self, held, set_to_ns):
        return self._disk.held(held).read_ns != set_to_ns

    monkeypatch.setattr(Reading, "_was_read", ask)
    broken = live(STALE).broken
    assert broken is not None
    assert broken.law == "E"
    assert "stale file handle" in broken.what

"""What lives on the shipped clouds have found, each as the least story that showed it."""

from __future__ import annotations

from sublet.runtime.controller.host import Paces
from sublet_lab.world.life import live
from sublet_lab.world.story import Fault, JobPlan, Story


def test_a_notice_is_given_though_there_is_no_room_to_write_it_down():
    """E: the market of the box could not carry out a strike while its folder was full, and nobody was told."""
    story = Story(
        seed=325,
        jobs=(
            JobPlan(
                name="job0",
                at_s=27.832,
                max_workers=1,
                steps=278,
                step_s=1.0,
                boot_s=0.973,
                write_s=2.991,
                hang_s=60.0,
                on_node_loss="restart",
            ),
        ),
        faults=(Fault(at_s=172.775, kind="full_folder", rng=351441769),),
        gpus_per_node=1,
        most_nodes=3,
        purse_usd=None,
        keeps_records=True,
        cloud="local",
        policy="max-speedup",
        think_s=0.02,
        paces=Paces(),
        lease_s=30.0,
        span_s=300.0,
        http=False,
        told_inside=False,
    )
    assert live(story).broken is None


def test_the_rest_of_a_least_bill_is_at_a_price_that_could_be_known():
    """I6: a node ended between the moment that a price was published and the moment that anybody had heard of it."""
    story = Story(
        seed=334,
        jobs=(
            JobPlan(
                name="job0",
                at_s=39.827,
                max_workers=1,
                steps=10,
                step_s=0.5,
                boot_s=1.326,
                write_s=0.552,
                hang_s=60.0,
                fails=1,
            ),
            JobPlan(name="job2", at_s=38.255, max_workers=2, steps=80, step_s=0.2, boot_s=3.349, write_s=2.145),
        ),
        faults=(Fault(at_s=60.005, kind="reprice", rng=428196355),),
        gpus_per_node=1,
        most_nodes=3,
        purse_usd=None,
        keeps_records=True,
        cloud="aws",
        policy="max-speedup",
        think_s=0.02,
        paces=Paces(),
        lease_s=30.0,
        span_s=300.0,
        http=False,
        told_inside=False,
    )
    assert live(story).broken is None


def test_a_node_whose_record_is_damaged_is_ended_before_its_job_goes_on_elsewhere():
    """I5: it counted as gone, and its worker trained on beside the next one until its lease ended."""
    story = Story(
        seed=647,
        jobs=(
            JobPlan(
                name="job0",
                at_s=86.612,
                max_workers=1,
                steps=470,
                step_s=0.2,
                boot_s=0.555,
                write_s=1.359,
                on_node_loss="fail",
            ),
        ),
        faults=(
            Fault(at_s=63.886, kind="user_pause", rng=145249887),
            Fault(at_s=199.146, kind="damaged_record", rng=960043424),
            Fault(at_s=213.76, kind="flags", rng=1073302863),
        ),
        gpus_per_node=1,
        most_nodes=3,
        purse_usd=None,
        keeps_records=True,
        cloud="local",
        policy="max-speedup",
        think_s=0.02,
        paces=Paces(),
        lease_s=30.0,
        span_s=300.0,
        http=False,
        told_inside=False,
    )
    assert live(story).broken is None


def test_what_is_taken_because_of_its_price_is_not_charged_at_that():
    """I6: nodes went because spot cost six times as much, and the books had the rest of their least bill at that."""
    story = Story(
        seed=808,
        jobs=(
            JobPlan(
                name="job0",
                at_s=27.439,
                max_workers=1,
                steps=10,
                step_s=1.0,
                boot_s=2.521,
                write_s=2.588,
                hang_s=300.0,
                on_node_loss="fail",
            ),
        ),
        faults=(Fault(at_s=243.904, kind="stop_agent", rng=719951158),),
        gpus_per_node=1,
        most_nodes=3,
        purse_usd=None,
        keeps_records=True,
        cloud="local",
        policy="max-speedup",
        think_s=3.0,
        paces=Paces(tick_s=1.0, agents_come_back_s=6.0, rent_tries=3),
        lease_s=30.0,
        span_s=300.0,
        http=False,
        told_inside=True,
    )
    assert live(story).broken is None

"""Jobs on the shelf, stores that cannot be written, and files beside them of which half was."""

from __future__ import annotations

from dataclasses import replace

from sublet.runtime.controller.host import Paces
from sublet_lab.world.life import live
from tests.rigs.shrunk import a_job, a_story, breaks


def test_a_job_is_not_taken_off_the_shelf_where_that_cannot_be_written_down():
    """Seed 65: who asked for it got the store's own error, and the controller lived on with a job it had not kept."""
    jobs = [
        a_job("job0", 69.227, 64, 0.5, 3.878, 2.366, checkpoint_every_s=25.0),
        a_job(
            "job1",
            89.671,
            10,
            1.0,
            1.091,
            0.602,
            max_workers=3,
            hang_s=60.0,
            on_node_loss="replace",
            checkpoint_every_s=8.0,
        ),
        a_job("job2", 31.536, 277, 0.5, 1.195, 2.707, hang_s=60.0, sdk=False),
    ]
    faults = [(116.614, "full_disk", 990186068), (145.307, "user_returns", 731052876)]
    kept = Paces(events_a_snapshot=20, events_a_file=40, history_kept=60, jobs_kept=0, jobs_shelved=1, save_s=5.0)
    paces = replace(kept, tick_s=1.0, absences=2, agent_comes_s=45.0, agents_come_back_s=6.0, rent_tries=3)
    story = a_story(
        65,
        jobs,
        faults,
        cloud="aws",
        paces=paces,
        gpus_per_node=1,
        most_nodes=3,
        span_s=300.0,
        cap=2.0,
        told_inside=False,
    )
    assert not breaks(story)


def test_no_snapshot_is_written_of_what_the_log_does_not_have():
    """Seed 1873: what was heard at a start could not be written, and a snapshot of it was, once there was room."""
    jobs = [a_job("job1", 15.418, 72, 0.5, 3.332, 0.947)]
    faults = [
        (23.064, "crash_archive", 835124347),
        (36.341, "full_disk", 689341692),
        (75.966, "replay", 485044485),
    ]
    kept = Paces(events_a_snapshot=5, events_a_file=10, history_kept=60, jobs_kept=1, jobs_shelved=1, save_s=5.0)
    paces = replace(kept, tick_s=1.0, sweep_s=15.0, agent_comes_s=45.0, agents_come_back_s=6.0, rent_tries=3)
    knobs = {"gpus_per_node": 1, "most_nodes": 3, "span_s": 300.0, "cap": 2.0, "told_inside": True, "think_s": 0.02}
    assert not breaks(a_story(1873, jobs, faults, cloud="aws", paces=paces, **knobs))


def test_a_job_begins_whose_first_register_of_checkpoints_was_cut_short():
    """Seed 6070: nobody could read it, so no worker was told to begin at 0, and the job failed after ten starts."""
    jobs = [
        a_job("job0", 75.261, 10, 0.5, 0.762, 1.559, hang_s=300.0, on_node_loss="replace"),
        a_job("job2", 48.438, 10, 0.2, 2.354, 0.907, max_workers=2, hang_s=60.0, on_node_loss="replace"),
    ]
    knobs = {"gpus_per_node": 1, "most_nodes": 3, "span_s": 300.0, "cap": 5.0, "told_inside": False, "think_s": 0.02}
    life = live(a_story(6070, jobs, [(89.416, "crash_archive", 343522294)], travels=True, **knobs))
    assert (life.broken, life.effects["crash_archive"]) == (None, 1)

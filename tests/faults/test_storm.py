"""Five hundred jobs at once, at a cloud that lets in two launches a second: nothing is lost."""

from __future__ import annotations

from sublet.runtime.controller.watch.alarms import CallOutcome
from tests.rigs.storm import JOBS, STORM, Storm


def test_500_jobs_at_once_are_all_given_a_node_and_none_twice():
    storm = Storm(STORM)
    storm.live()
    assert len(storm.submitted_s) == JOBS
    nodes = [instance.node_id for instance in storm.cloud.instances.values()]
    assert len(nodes) == len(set(nodes)) == JOBS
    assert set(nodes) == storm.held
    assert storm.all_rented_s <= 1.2 * JOBS  # we launch one a second
    assert storm.cloud.throttled <= 0.02 * JOBS
    assert storm.calls[CallOutcome.OK] == JOBS
    assert any("lets us rent no quicker" in text for text in storm.told)


def test_who_changes_their_mind_in_a_storm_pays_for_what_was_rented_and_no_more():
    storm = Storm(STORM, change_of_mind=True)
    storm.live()
    assert storm.waited > 300
    assert len(storm.cloud.instances) < JOBS - 300
    assert storm.cloud.alive() == []
    assert storm.held == set()

"""A command for whole nodes: one process with all GPUs of what its owner calls a node, and the addresses of all."""

from __future__ import annotations

from sublet.runtime.group.build import build_group
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.group.states import Running
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from tests.rigs.groups import sent

HOSTS = {"a": "10.0.0.1", "b": "10.0.0.2"}


def a_group(hosts=HOSTS, *, gpus=4, per_node=2):
    spec = JobSpec(
        name="job",
        argv=("bash", "-c", "x"),
        cwd="/",
        sdk=False,
        min_workers=gpus,
        max_workers=gpus,
        per_node=per_node,
        accelerators=("L4",),
    )
    return build_group("job-1", spec, log_of=str, env=dict, host_of=lambda node_id: hosts.get(node_id, ""))


def come(group, starts, at_s=0.0):
    for _, start in starts:
        group.hear(wire.WorkerUp(worker_id=start.worker_id, pid=1), at_s)


def test_all_start_at_once_with_their_gpus_and_the_addresses_of_all():
    group = a_group()
    group.move(1, (("a", 2), ("b", 2)), 0, 0.0)
    starts = sent(group, wire.StartWorker)
    assert [(node, start.gpus, start.together, start.offers) for node, start in starts] == [
        ("a", 2, "", False),
        ("b", 2, "", False),
    ]
    told = [
        {name: text for name, text in start.env.items() if name.startswith("SKYPILOT") and "_SETUP_" not in name}
        for _, start in starts
    ]
    assert told[1] == {
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "2",
        "SKYPILOT_TASK_ID": "sublet-job-1",
    }
    assert told[0] == {**told[1], "SKYPILOT_NODE_RANK": "0"}
    assert starts[1][1].env["SKYPILOT_SETUP_NODE_RANK"] == "1"
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & starts[0][1].env.keys()
    come(group, starts)
    assert (group.size, [news.outcome for news in group.news]) == (4, [Outcome.MOVED])


def test_two_of_its_nodes_on_one_machine_have_a_process_and_gpus_each():
    group = a_group()
    group.move(1, (("a", 4),), 0, 0.0)
    starts = sent(group, wire.StartWorker)
    assert [(node, start.gpus, start.env["SKYPILOT_NODE_RANK"]) for node, start in starts] == [
        ("a", 2, "0"),
        ("a", 2, "1"),
    ]
    assert starts[0][1].env["SKYPILOT_NODE_IPS"] == "10.0.0.1\n10.0.0.1"


def test_nobody_starts_before_the_addresses_of_all_are_known():
    hosts = {"a": "10.0.0.1"}
    group = a_group(hosts)
    group.move(1, (("a", 2), ("b", 2)), 0, 0.0)
    group.agent_came("a", [], 1.0)
    assert sent(group, wire.StartWorker) == []
    hosts["b"] = "10.0.0.2"
    group.agent_came("b", [], 2.0)
    starts = sent(group, wire.StartWorker)
    assert [node for node, _ in starts] == ["a", "b"]
    come(group, starts, 2.0)
    assert isinstance(group.state, Running)


def test_a_node_that_has_nothing_to_do_is_through_and_the_job_ends_with_the_last():
    group = a_group()
    group.move(1, (("a", 2), ("b", 2)), 0, 0.0)
    starts = sent(group, wire.StartWorker)
    come(group, starts)
    group.hear(wire.WorkerDown(worker_id=starts[1][1].worker_id, code=0), 1.0)
    group.tick(30.0)
    assert isinstance(group.state, Running)
    group.hear(wire.WorkerDown(worker_id=starts[0][1].worker_id, code=0), 60.0)
    assert [news.outcome for news in group.news] == [Outcome.MOVED, Outcome.FINISHED]


def test_one_that_fails_takes_the_others_along_and_all_start_again_at_the_same_width():
    group = a_group()
    group.move(1, (("a", 2), ("b", 2)), 0, 0.0)
    starts = sent(group, wire.StartWorker)
    come(group, starts)
    group.hear(wire.WorkerDown(worker_id=starts[1][1].worker_id, code=1, error="boom"), 1.0)
    group.tick(60.0)
    assert [(news.outcome, news.width) for news in group.news][1:] == [(Outcome.RESTARTED, 0)]
    (ended,) = [order for _, order in sent(group, wire.EndWorker)]
    group.hear(wire.WorkerDown(worker_id=ended.worker_id, code=-9), 61.0)
    group.tick(600.0)
    assert [node for node, _ in sent(group, wire.StartWorker)] == ["a", "b"]


def adopted(*ends):
    """Another controller, which finds the process of node "a" alone."""
    group = a_group()
    group.adopt(1, (("a", 2), ("b", 2)), 0, trains=True, wall_s=0.0)
    group.agent_came("a", ["job-1.1.0"], 1.0)
    group.agent_came("b", [], 1.0)
    for code in ends:
        group.hear(wire.WorkerDown(worker_id="job-1.1.1", code=code), 1.0)
    group.all_agents_came(2.0)
    return group


def test_a_node_that_was_through_before_this_controller_is_not_missing():
    for group in (adopted(), adopted(0)):
        group.tick(30.0)
        assert (group.news, sent(group, wire.StartWorker)) == ([], [])
        group.hear(wire.WorkerDown(worker_id="job-1.1.0", code=0), 60.0)
        assert [news.outcome for news in group.news] == [Outcome.FINISHED]


def test_a_node_that_failed_while_no_controller_was_there_takes_the_others_along():
    group = adopted(1)
    assert [news.outcome for news in group.news] == [Outcome.RESTARTED]
    assert [node for node, _ in sent(group, wire.EndWorker)] == ["a"]

"""A width at which a job cannot train: it goes back to the last that worked, says why, and does not try it at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.controller.jobs import reports
from sublet.runtime.controller.memory.records import JobRecord, kernel_job
from sublet.runtime.group import states
from sublet.runtime.group.build import build_group
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud, Training, Worker, api_over, one_gpu_offer
from tests.rigs.story import Story

pytestmark = pytest.mark.usefixtures("virtual_time")
DUPLICATE = (
    "NCCL error in: ncclCommInitRankConfig ... Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000"
)
PATIENCE_S = 90.0


class OneGpu(MemoryCloud):
    """All nodes share one device: more than one worker of a job can meet, and then fails at its first sum."""

    def _regroup(self, worker, order):
        super()._regroup(worker, order)
        members = self.groups.get((worker.job_id, order.generation), {})
        if order.world > 1 and len(members) == order.world:
            del self.groups[(worker.job_id, order.generation)]
            for each in members.values():
                facts = {"worker_id": each.id, "generation": order.generation, "step": each.step}
                self._word(each.node_id, wire.Broke(**facts, why=DUPLICATE))


def a_group(**facts):
    spec = JobSpec(**{"name": "job", "argv": ("x",), "cwd": "/", "max_workers": 4, **facts})
    return build_group("job-1", spec, log_of=str, env=dict)


def sent(group, kind):
    found = [message for _, message in group.outbox if isinstance(message, kind)]
    group.outbox[:] = [(node_id, message) for node_id, message in group.outbox if not isinstance(message, kind)]
    return found


def come(group, at_s):
    """All that were started are ready, or run; whoever is to save then has."""
    start_all(group, at_s)
    for save in sent(group, wire.SaveNow):
        saved(group, save.worker_id, at_s)


def start_all(group, at_s):
    for start in sent(group, wire.StartWorker):
        up = wire.Ready if group.spec.sdk else wire.WorkerUp
        facts = {} if group.spec.sdk else {"pid": 1}
        group.hear(up(worker_id=start.worker_id, **facts), at_s)


def saved(group, worker_id, at_s, *, step=None):
    facts = {"seconds": 0.1, "blocked_s": 0.0, "size_bytes": 1, "done": 10.0}
    group.hear(wire.Saved(worker_id=worker_id, step=group.step if step is None else step, **facts), at_s)


def stepped(group, worker_id, at_s, *, step):
    facts = {"generation": group.joined.generation, "done": 1.0, "epoch": 0, "loss": 1.0, "step_s": 0.1}
    group.hear(wire.Stepped(worker_id=worker_id, step=step, **facts), at_s)


def joined(group, at_s, *, step, steps=0):
    """Rank 0 says that all have met; then it makes steps."""
    first = next(worker for worker in group.workers.values() if worker.rank == 0)
    facts = {"worker_id": first.id, "generation": group.round.number, "done": 1.0}
    group.hear(wire.Joined(**facts, step=step, work=100.0), at_s)
    if steps:
        group.hear(wire.Stepped(**facts, step=step + steps, epoch=0, loss=1.0, step_s=0.1), at_s)


def broke(group, at_s, why=DUPLICATE):
    """All cry; the newcomer has not got the state yet."""
    for worker in list(group.workers.values()):
        step = 10 if worker.node_id == "a" else 0
        group.hear(wire.Broke(worker_id=worker.id, generation=group.round.number, step=step, why=why), at_s)


def healthy_at_one(**facts):
    group = a_group(**facts)
    group.move(1, (("a", 1),), 0, 0.0)
    come(group, 0.0)
    if group.spec.sdk:
        joined(group, 99.0, step=0, steps=10)
    group.tick(100.0)
    group.outbox.clear()
    group.news.clear()
    return group


def test_a_group_that_falls_apart_before_its_first_step_goes_back_to_the_width_that_worked():
    group = healthy_at_one()
    group.move(2, (("b", 1), ("a", 1)), 0, 100.0)
    come(group, 100.0)
    at_s = 100.0
    for _ in range(20):
        orders = sent(group, wire.Regroup)
        if orders and orders[0].world == 1:
            break
        joined(group, at_s, step=10)
        broke(group, at_s)
        at_s += 3.0
        group.tick(at_s)
    assert [order.worker_id for order in orders] == ["job-1.1000000000.0"], "the one that has the state"
    joined(group, at_s, step=10, steps=5)
    assert group.training
    outcomes = [news.outcome for news in group.news]
    assert Outcome.FAILED not in outcomes
    assert any("Duplicate GPU" in news.why for news in group.news)
    assert not any("nobody is gone" in news.why for news in group.news)


def test_a_newcomer_that_crashes_costs_the_job_its_new_width_and_nothing_else():
    group = healthy_at_one(retries=Retries(user=0))
    group.move(2, (("a", 2),), 0, 100.0)
    (start,) = sent(group, wire.StartWorker)
    group.hear(wire.WorkerDown(worker_id=start.worker_id, code=1, error="CUDA out of memory"), 101.0)
    assert group.training
    group.tick(104.0)
    (order,) = sent(group, wire.Regroup)
    assert (order.world, order.broken) == (1, False)
    joined(group, 105.0, step=12, steps=1)
    assert group.training
    assert [news.why for news in group.news if news.why] == ["CUDA out of memory"]
    assert group.failures["user"] == 0


def test_an_unmodified_script_that_cannot_be_two_is_one_again():
    group = healthy_at_one(sdk=False, retries=Retries(user=0))
    group.move(2, (("a", 1), ("b", 1)), 0, 100.0)
    for worker_id in list(group.workers):
        group.hear(wire.WorkerDown(worker_id=worker_id, code=-15), 100.0)
    come(group, 101.0)
    come(group, 101.0)
    for worker_id in list(group.workers):
        group.hear(wire.WorkerDown(worker_id=worker_id, code=1, error="Duplicate GPU detected"), 102.0)
    group.outbox.clear()
    for at_s in (103.0, 106.0, 110.0):
        group.tick(at_s)
    assert len(sent(group, wire.StartWorker)) == 1
    assert Outcome.FAILED not in [news.outcome for news in group.news]


def test_a_script_that_never_trained_at_any_width_is_not_tried_narrower():
    group = a_group(retries=Retries(user=3))
    group.move(1, (("a", 1), ("b", 1)), 0, 0.0)
    for start in sent(group, wire.StartWorker):
        group.hear(wire.WorkerDown(worker_id=start.worker_id, code=1, error="no data here"), 1.0)
    assert [news.outcome for news in group.news] == [Outcome.FAILED]


def test_a_job_that_never_forms_begins_as_narrow_as_its_owner_lets_it():
    group = a_group(min_workers=1)
    group.move(1, (("a", 1), ("b", 1)), 0, 0.0)
    at_s = 0.0
    for _ in range(4):
        come(group, at_s)
        at_s += 31.0
        group.tick(at_s)
    orders = sent(group, wire.Regroup)
    assert orders[-1].world == 1
    assert [news.width for news in group.news if news.outcome is Outcome.NARROWED] == [2]


@pytest.mark.parametrize(("too_wide", "most"), [(None, 8), (8, 4), (5, 4), (4, 2), (2, 8)])
def test_what_is_planned_stays_below_a_width_that_failed_and_within_the_sizes_of_the_job(too_wide, most):
    spec = JobSpec(name="j", argv=("x",), cwd="/", min_workers=2, max_workers=8, sizes=(2, 4, 8))
    record = JobRecord("j-1", spec, build_group("j-1", spec, log_of=str, env=dict), 0.0, too_wide=too_wide)
    assert kernel_job(record, 1.0).max_gpus == most


@pytest.mark.parametrize("policy", ["max-speedup", "price"])
def test_a_job_whose_second_worker_cannot_train_beside_the_first_ends_well(tmp_path, monkeypatch, policy):
    """Seen on one GPU: healthy at one worker, scaled to two, failed seven times in 14 s, and ended as failed."""
    monkeypatch.setattr(states, "APART_S", 0.05)
    view, told = lived(tmp_path, policy, 150)
    assert (view["phase"], view["step"]) == ("finished", 150), view["error"]
    tried = [text for text in told if "cannot train on 2 workers" in text]
    if policy == "max-speedup":
        assert len(tried) == 1, told
    assert all("Duplicate GPU" in text for text in tried)
    assert not any("nobody is gone" in text for text in told)


def test_a_width_that_failed_is_tried_again_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "APART_S", 0.05)
    monkeypatch.setattr(reports, "TOO_WIDE_S", 0.2)
    view, told = lived(tmp_path, "max-speedup", 60)
    assert view["phase"] == "finished"
    assert sum("cannot train on 2 workers" in text for text in told) > 1


def test_a_width_that_failed_is_remembered_by_the_next_controller(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "APART_S", 0.05)
    story = Story(tmp_path, limits={"spot": Limit(max_nodes=2)})
    story.cloud = OneGpu([one_gpu_offer("spot")], Clock(speedup=60.0))
    story.cloud.jobs["j-1"] = Training(steps=100_000, step_s=0.02)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(JobSpec(name="j", argv=("x",), cwd="/", retries=Retries(infra=5)))
            await until(api, lambda view: view["step"] > 10)
            await api.scale("j-1", low=2, high=2)
            before = await until(api, lambda view: "cannot train on 2 workers" in view["reason"])
        async with story.controller() as api:
            view = await until(api, lambda view: view["phase"] == "running" and view["step"] > before["step"] + 20)
            assert view["workers"] == 1
            assert "trains on 1 instead" in view["reason"]
            assert "Duplicate GPU" in view["reason"]
            tried = [event for event in await api.events("j-1") if event["kind"] == "Narrowed"]
            assert len(tried) == 1

    asyncio.run(live())


def lived(folder, policy, steps):
    """A job that is scaled from one worker to two: how it ended, and what was told of it."""
    cloud = OneGpu([one_gpu_offer("spot")], Clock(speedup=60.0))
    cloud.jobs["j-1"] = Training(steps=steps, step_s=0.02)

    async def live():
        with api_over(
            cloud, folder, plugins.load("sublet.policies", policy)(), limits={"spot": Limit(max_nodes=2)}
        ) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            spec = JobSpec(name="j", argv=("x",), cwd="/", retries=Retries(infra=5))
            await api.submit(spec)
            await until(api, lambda view: view["step"] > 10)
            await api.scale("j-1", low=1, high=2)
            view = await until(api, lambda view: view["phase"] in ("finished", "failed"))
            told = [event["text"] for event in await api.events("j-1")]
            await api.shutdown()
            await cloud.close()
            await asyncio.gather(running, return_exceptions=True)
        return view, told

    return asyncio.run(live())


async def until(api, reached):
    end_s = time.monotonic() + PATIENCE_S
    while not reached(view := await api.job("j-1")):
        assert time.monotonic() < end_s, view
        await asyncio.sleep(0.02)
    return view


def test_a_width_that_failed_is_not_planned_though_its_owner_wants_no_less():
    spec = JobSpec(name="j", argv=("x",), cwd="/", min_workers=2, max_workers=2, sizes=(2,))
    record = JobRecord("j-1", spec, build_group("j-1", spec, log_of=str, env=dict), 0.0)
    record.too_wide, record.back_to = 2, 1
    job = kernel_job(record, 1.0)
    assert (job.min_gpus, job.max_gpus) == (1, 1)
    assert job.speed.rate("any", (1,), 0.0) > 0.0
    record.allow_any_width()
    assert kernel_job(record, 1.0).min_gpus == 2


@pytest.mark.parametrize("policy", ["max-speedup", "price"])
def test_a_job_that_cannot_be_as_wide_as_its_owner_wants_gives_the_other_node_back_and_says_so(
    tmp_path, monkeypatch, policy
):
    """Seen: it trained on one worker, held two nodes until its end, and both were billed as useful."""
    monkeypatch.setattr(states, "APART_S", 0.05)

    async def scene(api):
        await api.scale("j-1", low=2, high=2)
        await until(api, lambda view: "cannot train on 2 workers" in view["reason"])
        view = await until(api, lambda view: view["phase"] == "running" and len(view["node_ids"]) == 1)
        assert view["workers"] == 1
        assert "trains on 1 instead" in view["reason"]
        again = [event for event in await api.events("j-1") if event["kind"] == "Narrowed"]
        assert len(again) == 1

    on_one_gpu(tmp_path, policy, 100_000, scene)


def test_gpus_on_which_nobody_trains_yet_are_not_billed_as_useful(tmp_path, monkeypatch):
    """One trains, the other never gets beyond its start: half of the rent is for starts."""
    monkeypatch.setattr(OneGpu, "_start", starts_but_the_second)

    async def scene(api):
        await api.scale("j-1", low=2, high=2)
        view = await until(api, lambda view: len(view["node_ids"]) == 2)
        before = await api.cost("j-1")
        await until(api, lambda now: now["step"] > view["step"] + 50)
        after = await api.cost("j-1")
        spent = {name: after[name] - before[name] for name in ("usd_useful", "usd_restart", "usd_total")}
        assert spent["usd_useful"] == pytest.approx(spent["usd_restart"])
        assert spent["usd_total"] > 0.0
        await api.cancel("j-1", now=True)  # an order that is never answered would hold up the end

    on_one_gpu(tmp_path, "max-speedup", 100_000, scene)


def starts_but_the_second(self, node, message):
    if not any(other.workers for other in self.nodes.values()):
        MemoryCloud._start(self, node, message)
    else:
        node.workers[message.worker_id] = Worker(message.worker_id, message.job_id, node.id)


def on_one_gpu(folder, policy, steps, scene):
    """A job trains on one worker; then the scene."""
    cloud = OneGpu([one_gpu_offer("spot")], Clock(speedup=60.0))
    cloud.jobs["j-1"] = Training(steps=steps, step_s=0.02)

    async def live():
        limits = {"spot": Limit(max_nodes=2)}
        with api_over(cloud, folder, plugins.load("sublet.policies", policy)(), limits=limits) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            await api.submit(JobSpec(name="j", argv=("x",), cwd="/", retries=Retries(infra=5)))
            await until(api, lambda view: view["step"] > 10)
            try:
                await scene(api)
            finally:
                await api.shutdown()
                await cloud.close()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(live())


def test_a_width_that_it_never_trained_at_is_tried_with_a_checkpoint_behind_it():
    """Seen: the lone worker was told to regroup, the new width crashed, and all before the first save was lost."""
    group = healthy_at_one()
    first = next(iter(group.workers))
    group.move(2, (("a", 1), ("b", 1)), 0, 100.0)
    stepped(group, first, 101.0, step=40)
    assert sent(group, wire.SaveNow) == [], "the newcomer may need long, and the old group trains on"
    start_all(group, 101.0)
    assert [save.worker_id for save in sent(group, wire.SaveNow)] == [first]
    assert sent(group, wire.Regroup) == [], "not before it is written"
    assert group.training
    saved(group, first, 101.5, step=39)
    assert sent(group, wire.Regroup) == [], "that one was begun before it was asked"
    stepped(group, first, 101.8, step=45)
    saved(group, first, 102.0, step=40)
    assert len(sent(group, wire.Regroup)) == 2, "what was made since is not waited for"
    joined(group, 103.0, step=45, steps=5)
    group.move(3, (("a", 1),), 0, 104.0)
    joined(group, 105.0, step=50, steps=5)
    group.move(4, (("a", 1), ("b", 1)), 0, 106.0)
    start_all(group, 107.0)
    assert sent(group, wire.SaveNow) == [], "it is known to train on two"


def test_an_order_that_comes_before_the_first_step_is_followed_with_a_checkpoint_behind_it():
    group = a_group()
    group.move(1, (("a", 1),), 0, 0.0)
    come(group, 0.0)
    joined(group, 1.0, step=0)
    group.outbox.clear()
    group.move(2, (("a", 1), ("b", 1)), 0, 2.0)
    (first,) = [worker.id for worker in group.workers.values() if worker.node_id == "a"]
    stepped(group, first, 3.0, step=238)
    start_all(group, 40.0)
    assert [save.worker_id for save in sent(group, wire.SaveNow)] == [first]
    assert sent(group, wire.Regroup) == []
    saved(group, first, 41.0)
    assert len(sent(group, wire.Regroup)) == 2


def test_nothing_is_written_before_a_new_width_where_all_is_in_a_checkpoint():
    group = healthy_at_one()
    saved(group, next(iter(group.workers)), 99.5)
    group.move(2, (("a", 1), ("b", 1)), 0, 100.0)
    start_all(group, 101.0)
    assert sent(group, wire.SaveNow) == []
    assert len(sent(group, wire.Regroup)) == 2


def test_a_job_that_began_anew_is_saved_before_a_new_width_though_it_was_further_before():
    group = healthy_at_one()
    saved(group, next(iter(group.workers)), 99.5, step=500)
    group.stop(2, resumable=True, wall_s=100.0)
    for worker_id in list(group.workers):
        group.hear(wire.WorkerDown(worker_id=worker_id, code=83), 101.0)
    group.move(3, (("a", 1),), 0, 102.0)
    come(group, 103.0)
    joined(group, 104.0, step=0, steps=30)
    group.move(4, (("a", 1), ("b", 1)), 0, 105.0)
    start_all(group, 106.0)
    assert len(sent(group, wire.SaveNow)) == 1


def test_a_checkpoint_is_awaited_though_the_newcomers_needed_long():
    group = healthy_at_one()
    group.move(2, (("a", 1), ("b", 1)), 0, 100.0)
    start_all(group, 99.0 + states.READY_S)
    group.tick(101.0 + states.READY_S)
    assert group.news == []
    assert group.training


def waits_for_a_checkpoint():
    """Both are here, and the old group writes."""
    group = healthy_at_one()
    group.move(2, (("a", 1), ("b", 1)), 0, 100.0)
    start_all(group, 101.0)
    ((worker_id),) = [save.worker_id for save in sent(group, wire.SaveNow)]
    assert sent(group, wire.Regroup) == []
    return group, worker_id


def test_a_checkpoint_that_could_not_be_written_is_not_waited_for():
    group, worker_id = waits_for_a_checkpoint()
    group.hear(wire.SaveFailed(worker_id=worker_id, step=10, why="disk full"), 102.0)
    assert len(sent(group, wire.Regroup)) == 2


def test_a_checkpoint_that_takes_too_long_is_not_waited_for_and_the_new_group_writes_one():
    group, _ = waits_for_a_checkpoint()
    group.tick(101.0 + states.SAVE_S - 1.0)
    assert sent(group, wire.Regroup) == []
    group.tick(101.0 + states.SAVE_S)
    assert len(sent(group, wire.Regroup)) == 2
    joined(group, 162.0, step=10)
    assert len(sent(group, wire.SaveNow)) == 1


def test_a_group_that_breaks_while_it_writes_regroups_at_once():
    group, worker_id = waits_for_a_checkpoint()
    formed = group.joined.generation
    group.hear(wire.Broke(worker_id=worker_id, generation=formed, step=10, why="gone"), 102.0)
    group.tick(102.5)
    assert [order.broken for order in sent(group, wire.Regroup)] == [True, True]


def test_a_node_that_is_about_to_go_is_not_waited_on_for_its_checkpoint():
    group, worker_id = waits_for_a_checkpoint()
    group.evacuate("z", 102.0)
    assert group.outbox == []
    group.evacuate("a", 103.0)
    assert [(leave.worker_id, leave.save) for leave in sent(group, wire.Leave)] == [(worker_id, True)]
    group.hear(wire.WorkerDown(worker_id=worker_id, code=83), 104.0)
    assert [order.world for order in sent(group, wire.Regroup)] == [1]

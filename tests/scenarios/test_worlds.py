"""Scenarios 1, 4, 18, 25, 28, 30, 31, 32 and 39 in a simulated world: the shipped controller, agents and lines."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sublet.runtime.controller.inbox import Ending
from sublet.train.checkpoint.commit import Directory
from sublet_lab.world.crash_points import die_at, points_of, sample_of
from sublet_lab.world.faults import AT_CALL, AT_COMMIT
from sublet_lab.world.network import CONTROLLER, Way
from tests.scenarios.worlds import a_job, a_story, every, fault, lived

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(900)


@pytest.mark.scenario(1, "the controller is killed before and after every commit and provider call", "S")
def test_01_a_controller_may_die_at_every_commit_and_every_call(full, measured):
    """A life with a notice, a loss, a resize and a second job; every point of it, or a sample."""
    faults = (fault(40.0, "take_told"), fault(70.0, "notice", 3), fault(90.0, "user_scale", 1))
    story = a_story(
        jobs=(a_job(), a_job("job1", at_s=30.0, max_workers=1, steps=100)), faults=faults, keeps_records=True
    )
    points = points_of(story)
    kinds = Counter(point.kind for point in points)
    tried = points if full else sample_of(story, 6, 1)
    deaths = 0
    for point in tried:
        outcome = die_at(story, point)
        assert outcome.broken is None, f"{point}: {outcome.broken}"
        assert outcome.lives > 1, f"nobody died {point}"
        deaths += outcome.lives - 1
    measured(
        f"{len(tried)} of {len(points)} points ({kinds[AT_COMMIT] // 2} commits and {kinds[AT_CALL] // 2} calls, "
        f"before and after): {deaths} deaths, 0 leaked, 0 twice, all jobs ended, ledgers agree"
    )


@pytest.mark.scenario(4, "a new instance is missing in listings for up to 60 s", "S")
def test_04_a_node_that_no_listing_shows_yet_is_neither_rented_again_nor_forgotten(full, measured):
    nodes = 0
    for seed in range(20 if full else 3):

        def watch(life):
            life.cloud.lie("list", "invisible", 300.0)

        found = lived(a_story(seed, keeps_records=bool(seed % 2)), watch)
        instances = list(found.life.cloud.instances.values())
        assert len(instances) == len({instance.node_id for instance in instances}) == 2, "one was rented twice"
        assert any(instance.visible_s > instance.began_s for instance in instances), "all were visible at once"
        nodes += len(instances)
    measured(f"{nodes} nodes in {seed + 1} lives, each rented once")


@pytest.mark.scenario(
    18,
    "writes that the disk forgets: a power cut",
    "S",
    lacks="L: a machine whose power is cut; until then SQLite's own promise for its file (WAL, FULL) is believed",
)
def test_18_what_was_acknowledged_is_known_after_every_crash(full, measured):
    """Law I18 over seeds that crash in commits: whatever a user was told is there in the next life."""
    promised = deaths = 0
    for seed in range(60 if full else 6):
        faults = tuple(fault(10.0 + 15.0 * number, "crash_commit", 31 * seed + number) for number in range(6))
        jobs = tuple(a_job(f"job{number}", at_s=5.0 + 12.0 * number, max_workers=1, steps=60) for number in range(5))
        found = lived(a_story(seed, jobs=jobs, faults=faults, most_nodes=4))
        controller = found.life.stage.controllers.controller
        known = set(controller.records)
        assert set(found.life.stage.users.promised.values()) <= known
        assert len(known) == 5
        promised += len(found.life.stage.users.promised)
        deaths += found.outcome.lives - 1
    assert deaths > seed
    measured(f"{promised} submissions acknowledged over {deaths} crashes in commits: 0 lost")


@pytest.mark.scenario(18, "writes that the disk forgets: a power cut", "S")
def test_18_a_checkpoint_that_was_told_is_whole_after_every_power_cut(full, measured):
    """The disk of the checkpoints loses all that it was not told to keep, every seven seconds, in saves and between."""
    told = []
    for seed in range(20 if full else 2):

        def watch(life, seed=seed):
            def cut():
                storage, job = life.stage.meetings.storage, life.stage.truth.jobs["job0-1"]
                if storage.cut_power() and job.told > 0:
                    directory = Directory(Path("/checkpoints/job0-1"), disk=storage.disk, wall=storage.wall)
                    directory.verify(job.told)  # DamagedCheckpoint where it is not there as it was
                    told.append((seed, job.told))

            every(life, 7.0, cut)

        found = lived(a_story(seed, jobs=(a_job(steps=200, checkpoint_every_s=5.0),)), watch)
        assert found.life.stage.truth.jobs["job0-1"].done
    assert len(set(told)) > 5 * (seed + 1), "the same checkpoint again and again"
    measured(f"{len(told)} power cuts over {len(set(told))} checkpoints: the newest that was told was whole after each")


@pytest.mark.scenario(25, "a budget reaches its cap in the middle of a step", "S", lacks="C")
def test_25_nothing_is_spent_beyond_the_purse_and_jobs_end_resumable(full, measured):
    """Law I1 looks every 5 s at the cloud's own books; a third of the lives has a controller killed on the way."""
    spent, stopped = [], 0
    for seed in range(60 if full else 2):
        purse = 0.15 + 0.03 * (seed % 7)
        faults = (fault(60.0 + seed, "kill_controller", seed),) if seed % 3 == 0 else ()
        jobs = (a_job(steps=20_000, step_s=0.2), a_job("job1", at_s=20.0, steps=20_000, step_s=0.5))
        found = lived(
            a_story(seed, jobs=jobs, faults=faults, purse_usd=purse, policy=("max-speedup", "price")[seed % 2])
        )
        share = found.life.cloud.spent_grains() / 3.6e15 / purse
        spent.append(share)
        assert share <= 1.0, share
        for record in found.life.stage.controllers.controller.records.values():
            assert record.outcome is not Ending.FAILED
            truth = found.life.stage.truth.jobs[record.id]
            assert (record.checkpoint_step or 0) <= truth.saved
            assert not truth.done, "it ended, so that nothing stopped it"
            if truth.top > 0:
                stopped += 1
                assert truth.saved > 0, "it trained, and left no checkpoint to go on from"
    measured(
        f"{len(spent)} purses: {min(spent):.0%} to {max(spent):.1%} spent; {stopped} jobs stopped with a checkpoint"
    )


@pytest.mark.scenario(
    28,
    "no capacity in the wanted pool for hours",
    "S",
    lacks="policies other than `price`; a quarter of an hour here; five hours, the way back and deadlines by "
    "`tests/simulation/test_no_capacity.py`",
)
def test_28_without_spot_the_job_runs_on_demand_and_comes_back(full, measured):
    waits = []
    for seed in range(10 if full else 1):
        started = []

        def watch(life, started=started):
            life.cloud.sell_out("spot", 900.0)
            every(
                life,
                1.0,
                lambda: started or not life.stage.truth.jobs["job0-1"].top or started.append(life.stage.world.age_s),
            )

        job = a_job(steps=3000, step_s=0.5, max_workers=1)
        found = lived(a_story(seed, jobs=(job,), policy="price", span_s=600.0), watch)
        rented = [instance.offer_id for instance in found.life.cloud.instances.values()]
        assert rented[0] == "on-demand"
        assert rented[-1] == "spot", "it never came back"
        assert started, "it never trained"
        waits.append(started[0] - job.at_s - job.boot_s - 20.0)  # a machine takes up to 20 s to boot
    assert max(waits) <= 60.0
    measured(
        f"{len(waits)} lives without spot: on demand and training within {max(waits) + 21:.1f} s, boot included; "
        "back on spot when there is some again"
    )


@pytest.mark.scenario(
    30,
    "clocks: five minutes off, an hour back, summer time, a day ahead",
    "S",
    lacks="leases in the half of the lives whose controller is killed as well",
)
def test_30_clocks_may_jump_and_no_lease_or_ledger_minds(full, measured):
    """The controller's in some lives, those of two nodes in others; both in the rest."""
    jumps = (300.0, -300.0, 3600.0, -3600.0, 86_400.0, 1.0)
    lives = of_nodes = 0
    for seed in range(30 if full else 6):
        jump_s, whose = jumps[seed % len(jumps)], ("controller", "nodes", "both")[seed // 2 % 3]
        jumped = []

        def watch(life, jump_s=jump_s, whose=whose, jumped=jumped):
            def jump():
                if whose != "nodes":
                    life.stage.controllers.clock.jump_s += jump_s
                if whose != "controller":
                    for instance in life.cloud.alive():
                        life.site.clocks[instance.node_id].jump_s += jump_s
                        jumped.append(instance)

            life.stage.world.after(60.0, jump)

            def never_negative():
                controller = life.stage.controllers.controller
                if controller is not None and life.stage.controllers.ready:
                    assert controller.kernel.ledger.spent(controller.now_s()).grains >= 0

            every(life, 5.0, never_negative)

        faults = (fault(80.0, "kill_controller", seed),) if seed % 2 else ()
        found = lived(a_story(seed, faults=faults, keeps_records=seed % 3 != 0), watch)
        ends = [i for i in found.life.cloud.instances.values() if i.node is not None and i.node.ended_for_lease]
        if not faults:
            assert not ends, "a lease ended because somebody set a clock"
        assert (whose == "controller") is not bool(jumped), "no node was there whose clock could be set"
        assert found.life.stage.truth.jobs["job0-1"].done
        lives, of_nodes = lives + found.outcome.lives, of_nodes + len(jumped)
    measured(
        f"{seed + 1} jumps of {min(jumps):g} to {max(jumps):g} s over {lives} controllers and {of_nodes} nodes: "
        f"ledgers agree, none negative, no lease ended"
    )


@pytest.mark.scenario(31, "a network partition of 30 s, 5 min, 1 h; one way only", "S")
def test_31_a_partition_kills_nobody_early_and_nobody_trains_twice_afterwards(full, measured):
    """Law I5 sees every step: none by an older generation. L31: no node ends while its controller is reachable.

    Leases are of 120 s here, so that a partition of 30 s ends within them, and those of minutes do not.
    """
    lives, on = 0, []
    for length_s in (30.0, 300.0, 3600.0):
        for ways in ("both", "up", "down") if full else (("both", "up", "down")[int(length_s) % 7 % 3],):
            for seed in range(4 if full else 1):
                life = parted(seed, length_s, ways)
                assert life.stage.truth.jobs["job0-1"].done
                assert life.within_60_s >= 0.8 * 59.0 / STEP_S / 2, f"{life.within_60_s} steps in the first minute"
                on.append(life.within_60_s)
                lives += 1
    measured(
        f"{lives} partitions of 30 s to 1 h, both ways and one: nobody killed within 60 s, at least {min(on)} steps "
        f"made in the first 60 s of each, no step by two generations"
    )


STEP_S = 0.5  # of one worker; two are twice as fast


def parted(seed, length_s, ways):
    """One of two nodes is parted from its controller, after a minute; `within_60_s`: steps made in the next."""

    def watch(life):
        stage = life.stage

        def part():
            instance = life.cloud.alive()[0]
            both = {"up": (instance.node_id, CONTROLLER), "down": (CONTROLLER, instance.node_id)}
            cut = list(both.values()) if ways == "both" else [both[ways]]
            stage.network.block(*cut)
            stage.parted_until_s[instance.node_id] = stage.world.now_s + length_s
            stage.world.after(length_s, lambda: stage.network.unblock(*cut))
            before = stage.truth.jobs["job0-1"].top

            def a_minute_later():
                assert instance.ended_s is None, "killed within 60 s"
                life.within_60_s = stage.truth.jobs["job0-1"].top - before

            stage.world.after(59.0, a_minute_later)

        stage.world.after(60.0, part)

    job = a_job(steps=1500, step_s=STEP_S)
    return lived(a_story(seed, jobs=(job,), lease_s=120.0, span_s=min(length_s + 120.0, 900.0)), watch).life


@pytest.mark.scenario(
    32,
    "duplicate, reordered and delayed messages; repeated requests",
    "S",
    lacks="orders to agents that come twice: `tests/unit/runtime/agent/test_agent.py`",
)
def test_32_a_request_that_is_repeated_is_one_job_and_late_words_change_nothing(full, measured):
    """Users ask again after they were answered, too; and lines of agents come twice, late, and in another order."""
    asked = Counter()
    for seed in range(40 if full else 4):
        kinds = ("slow_net", "reset_line", "hole", "kill_controller")
        faults = tuple(
            fault(15.0 + 20.0 * number, kinds[(seed + number) % len(kinds)], 7 * seed + number) for number in range(6)
        )
        jobs = tuple(a_job(f"job{number}", at_s=5.0 + 20.0 * number, steps=200) for number in range(3))

        def watch(life):
            life.again = Again(life, asked)

        found = lived(a_story(seed, jobs=jobs, faults=faults, http=bool(seed % 2)), watch)
        users = found.life.stage.users
        assert len(found.life.stage.controllers.controller.records) == 3, "one key, one job"
        assert not users.doubles
        assert found.life.again.answers, "nobody was answered twice"
        for name, job_ids in found.life.again.answers.items():
            assert job_ids == {users.promised[name]}, "the same key gave another job"
        for truth in found.life.stage.truth.jobs.values():
            assert truth.done
        asked["faults"] += sum(found.outcome.effects.values())
    assert min(asked[what] for what in ("requests", "twice", "late")) > seed, asked
    measured(
        f"{seed + 1} lives with {asked['faults']} faults of lines: {asked['requests']} requests repeated after their "
        f"answer, {asked['twice']} lines of agents twice, {asked['late']} late and out of order: one job for each key"
    )


def whole(line):
    """Not a part of one, and not the greeting with which a line begins."""
    return line.startswith(b'{"type"') and line.endswith(b"}\n") and b'"Hello"' not in line


class Again:
    """Repeats what was said: requests with their key, and lines that agents have sent."""

    def __init__(self, life, counted):
        self._life, self._counted, self._rng = life, counted, random.Random(life.story.seed)
        self.answers = {}  # by name: every job id that the same key was answered with
        self._heard = {}  # node -> what its agent has said
        for number in range(8):
            life.stage.world.after(17.0 + 19.0 * number, self._ask)
        every(life, 1.0, self._listen)
        every(life, 7.0, self._speak)

    def _ask(self):
        users = self._life.stage.users
        for plan in self._life.story.jobs:
            if plan.name in users.promised:

                async def ask(api, plan=plan):
                    self._counted["requests"] += 1
                    answer = await api.submit(users.spec_of(plan), key=f"key-{plan.name}")
                    self.answers.setdefault(plan.name, set()).add(answer["job_id"])

                users.ask(ask)

    def _listen(self):
        for connection in self._life.stage.network.connections:
            way, node = connection.up, connection.socket.host
            if not hasattr(way, "heard"):
                way.heard, put = self._heard.setdefault(node, []), way.put

                def noted(chunk, way=way, put=put):
                    if chunk:
                        way.heard.extend(line for line in chunk.splitlines(keepends=True) if whole(line))
                    put(chunk)

                way.put = noted

    def _speak(self):
        """Whole lines, between those of now: the last one once more, and one of long ago."""
        for connection in self._life.stage.network.connections:
            said = self._heard.get(connection.socket.host, [])
            if len(said) > 3 and not connection.up.hole:
                Way.put(connection.up, said[-1])
                Way.put(connection.up, self._rng.choice(said[:-2]))
                self._counted["twice"] += 1
                self._counted["late"] += 1


PRINT = """
import sys
from sublet_lab.world.life import live
from sublet_lab.world.story import draw_story
for seed in map(int, sys.argv[1:]):
    outcome = live(draw_story(seed))
    print(seed, outcome.digest, outcome.events, outcome.commits)
"""


@pytest.mark.scenario(
    39,
    "the same seed twice",
    "S",
    lacks="another machine: the same command there must print the same digest; another Python where SCENARIO_PYTHONS "
    "names one that has sublet",
)
def test_39_the_same_seed_writes_the_same_log_byte_for_byte(full, measured):
    seeds = [str(seed) for seed in range(40 if full else 2)]
    others = os.environ.get("SCENARIO_PYTHONS", "").split()
    logs = {}
    for hashes, python in [(hashes, sys.executable) for hashes in ("0", "1", "random")] + [("2", o) for o in others]:
        env = {**os.environ, "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            [python, "-c", PRINT, *seeds],
            env=env,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=600,
            check=True,
        )
        logs[hashes, python] = done.stdout
    assert len({*logs.values()}) == 1, logs
    (log, *_) = logs.values()
    assert len({line.split()[1] for line in log.splitlines()}) == len(seeds), "digests that are all alike"
    digest, version = hashlib.sha256(log.encode()).hexdigest()[:12], sys.version.split()[0]
    beside = f" and {len(others)} other" if others else ""
    measured(
        f"{len(seeds)} seeds, {len(logs)} processes with other hashes: equal logs on Python {version}{beside}, "
        f"all of them {digest}"
    )

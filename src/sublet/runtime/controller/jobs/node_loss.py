"""Jobs that lose a node: what each does then, and whether it brought the node down itself.

    continue   the survivors go on, at whatever worker count the policy gives them
    replace    the survivors stand and wait: for a while no plan gives the job another worker count than it had
    restart    all its workers start again from the last checkpoint (the group sees to that)
    fail       the survivors save and leave, and the job has failed; it can be resumed

The owner chooses by `elastic.on_node_loss`. A node that was left in time, after a notice, is not lost.

A script can end the agent of its node, exhaust its memory or crash its driver; another node would be rented for it, for
ever. Some providers know that they did not take the node: that counts against the job, unless the controller was away
for so long that the agent may have ended for want of a word from it. What came before a start that lasted for hours is
forgiven, for such a job gets on. Of others it looks as if the cloud had taken it, and what tells the two apart is the
time. A node that goes without notice within seconds of the start of a job's workers on it, start after start, while
nodes of others stay, goes because of that job. Workers that were there when the last node went, and train on without
it, are of no other start. The job then waits longer and longer between two starts, and each counts as its own failure.
"""

from __future__ import annotations

from sublet.domain import events as news
from sublet.domain.events import Event
from sublet.domain.quantity import counted
from sublet.runtime.controller.inbox import Hold, Inbox
from sublet.runtime.controller.jobs.attempts import Attempts
from sublet.runtime.controller.jobs.lifecycle import Lifecycle
from sublet.runtime.controller.memory import Awaited, Context, JobRecord, Suspicion
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.group.failures import Fault
from sublet.runtime.jobs.bounds import OnNodeLoss


class NodeLosses:
    """Of all jobs."""

    def __init__(self, context: Context, jobs: Lifecycle, attempts: Attempts) -> None:
        self._inbox, self._bill, self._jobs, self._attempts = context.inbox, context.bill, jobs, attempts

    def go_on_without(
        self, node_id: str, records: list[JobRecord], wall_s: float, *, cut_off: bool = False
    ) -> list[Event]:
        """A node is gone, or cut off; these have, or had, workers there. What the kernel must hear before that.

        When one that is cut off is back is not known: a job that was to stay as it is may go on narrower at once.
        """
        first: list[Event] = []
        for record in records:
            pinned = record.pinned is not None
            self._attempts.unpin(record)
            if pinned and cut_off:
                first.append(news.JobChanged(self._inbox.now_s(), self._jobs.describe(record)))
            if any(worker.node_id == node_id for worker in record.group.workers.values()):
                first += self.lose(record, node_id)
                self._bill.settle_job(record.id, self._inbox.now_s())
                record.lost_wall_s = wall_s
            record.group.node_lost(node_id, wall_s)
        return first

    def lose(self, record: JobRecord, node_id: str) -> list[Event]:
        """A node is gone on which it had workers; what the kernel must hear before it hears of that."""
        state = self._inbox.kernel.jobs.get(record.id)
        if state is None or record.paused or record.outcome:
            return []
        match record.spec.on_node_loss:
            case OnNodeLoss.FAIL:
                # Before the loss: or a node would be rented in place of this one, for a job that is given up.
                record.blamed = record.blamed or f"it lost {node_id}, and its elastic.on_node_loss is fail"
                survivors = any(worker.node_id != node_id for worker in record.group.workers.values())
                change = self._jobs.begin_to_give_up(record, record.blamed, saves=survivors)
                self._jobs.save_facts(record)  # with the loss, or the next controller would let it go on
                return [change]
            case OnNodeLoss.REPLACE if record.awaited is None and state.gpus:
                until_s = self._inbox.now_s() + record.spec.replace_s
                record.awaited = Awaited(workers=state.gpus, until_s=until_s)
                text = f"waits for another node in place of {node_id}, for {record.spec.replace_s:g} s at most"
                self._inbox.note(HistoryRow(kind="AwaitsNode", job_id=record.id, text=text))
                self._jobs.save_facts(record)  # with the loss, or under the next controller it would wait for ever
                return [news.JobChanged(self._inbox.now_s(), self._jobs.describe(record))]
            case _:
                pass
        return []

    def moved(self, record: JobRecord) -> None:
        """It trains in the shape of the last order; if that is as wide as it was, it waits no more."""
        if record.awaited is not None and record.group.size >= record.awaited.workers:
            self._wait_no_more(record)

    def end_wait(self, record: JobRecord) -> None:
        """A wait for another node has an end."""
        if record.awaited is not None and self._inbox.now_s() >= record.awaited.until_s:
            wide = counted(record.awaited.workers, "worker")
            text = f"{wide} could not be had again in time: it goes on with what there is"
            self._inbox.note(HistoryRow(kind="AwaitsNode", job_id=record.id, text=text))
            self._wait_no_more(record)

    def _wait_no_more(self, record: JobRecord) -> None:
        record.awaited = None
        self._jobs.relearn(record)
        self._jobs.save_facts(record)


EARLY_S = 20.0  # wall, from the start of a worker to the loss of its node: an import, and what it did then
SURE = 3  # starts in a row that ended so; spot nodes live for hours, so that chance would take years
FORGIVEN_S = 6 * 3600.0  # wall: a start that lasted as long clears what came before it
FIRST_REST_S = 2.0  # wall, after the second, doubled at each further one
LONGEST_REST_S = 600.0


class Blame:
    """The blame for nodes that go."""

    def __init__(self, inbox: Inbox, jobs: Lifecycle) -> None:
        self._inbox, self._jobs = inbox, jobs
        self._settled_s = float("-inf")  # wall, when a node was last lost by the cloud's doing
        self._there_s = self._woke_s = float("-inf")  # wall, when this controller was last here, and came back
        self._lease_s = float("inf")

    def keep_time(self, wall_s: float, lease_s: float) -> None:
        """The controller is here. Where it was not for long, agents may have ended for want of a word from it."""
        if wall_s - self._there_s > lease_s / 2:
            self._woke_s = wall_s
        self._there_s, self._lease_s = wall_s, lease_s

    def judge_loss(
        self, node_id: str, records: list[JobRecord], wall_s: float, why: str = "", *, unheard: bool = False
    ) -> set[str]:
        """A node is gone without notice; these had workers on it. Those that were not preempted by it, by id.

        `why`: the provider knows that it did not take the node. `unheard`: it was silent for as long as its lease, and
        ended for that.
        """
        if why and unheard:
            return {record.id for record in records}
        if why:
            for record in records:
                lasted_s = _youngest_s(record, node_id, wall_s)
                if not self._was_away(wall_s, since_s=wall_s - lasted_s):
                    if lasted_s >= FORGIVEN_S:
                        record.suspicion.inside.clear()
                    self._ended_its_node(record, wall_s, why, alone=len(records) == 1)
            return {record.id for record in records}
        early = [record for record in records if _youngest_s(record, node_id, wall_s) < EARLY_S]
        for record in records:
            if record not in early:
                record.suspicion.rounds.clear()
        if not early:
            self._settled_s = wall_s
            return set()
        if wall_s - self._settled_s < EARLY_S:
            return set()  # the cloud is taking nodes
        return {record.id for record in early if self._suspect(record, node_id, wall_s)}

    def end_rest(self, record: JobRecord, wall_s: float) -> None:
        """It has waited long enough."""
        if record.paused is Hold.BACK_OFF and wall_s >= record.suspicion.rests_until_s:
            self._jobs.resume(record)

    def _was_away(self, wall_s: float, since_s: float) -> bool:
        """Since then, and it woke up less than a lease ago: so long may news take of what ended meanwhile."""
        if wall_s - self._there_s > self._lease_s / 2:
            return True  # it wakes up just now
        return since_s < self._woke_s and wall_s - self._woke_s < self._lease_s

    def _suspect(self, record: JobRecord, node_id: str, wall_s: float) -> bool:
        found = record.suspicion
        born_s = wall_s - _youngest_s(record, node_id, wall_s)
        if record.group.round in found.rounds or born_s <= found.counted_s:
            return len(found.rounds) >= SURE  # another node of the same start, in whatever round its workers are by now
        found.rounds.add(record.group.round)
        found.counted_s = wall_s
        times = len(found.rounds)
        if times == 1 or record.paused:
            return False
        if times == SURE:
            record.unnoticed = max(0, record.unnoticed - (SURE - 1))  # the cloud had no part in these
        if times >= SURE:
            self._count(record, f"its nodes ended within {EARLY_S:.0f} s of its start, {times} times in a row")
        self._rest(record, found, times, wall_s, f"the node ended within seconds of its start, {times} times in a row")
        return times >= SURE

    def _ended_its_node(self, record: JobRecord, wall_s: float, why: str, *, alone: bool) -> None:
        """The cloud has not taken it. With others on the node the cause is not known: then it only waits."""
        found = record.suspicion
        if record.group.round in found.inside:
            return  # another node of the same start
        found.inside.add(record.group.round)
        times = len(found.inside)
        if times == 1 or record.paused:
            return
        if times >= SURE and alone:
            self._count(record, f"its nodes ended {times} times and the cloud did not take them ({why})")
        self._rest(record, found, times, wall_s, f"the cloud did not take its node ({why}), {times} times by now")

    def _count(self, record: JobRecord, what: str) -> None:
        """It is its own failure."""
        failures, limit = record.group.failures, record.spec.retries.user
        failures[Fault.USER] += 1
        if limit is not None and failures[Fault.USER] > limit:
            record.blamed = (
                f"{what}: it ends the agent, or uses up the machine\n"
                f"  next: sublet logs {record.id}; it can be resumed when that is mended"
            )
            record.suspicion = Suspicion()

    def _rest(self, record: JobRecord, found: Suspicion, times: int, wall_s: float, what: str) -> None:
        if record.blamed:
            record.paused = Hold.GIVEN_UP  # at once: the next start would be the next node
        else:
            rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(times - 2, 30))
            found.rests_until_s = wall_s + rest_s
            self._inbox.note(HistoryRow(kind="BackOff", job_id=record.id, text=f"{what}: it waits {rest_s:.0f} s"))
            record.paused = Hold.BACK_OFF
        self._jobs.relearn(record)


def _youngest_s(record: JobRecord, node_id: str, wall_s: float) -> float:
    """Of its youngest worker there."""
    return min(wall_s - worker.born_s for worker in record.group.workers.values() if worker.node_id == node_id)

"""Laws that hold under every fault. The kernel's own laws and these are looked at as the world goes on.

after every event   K the kernel's own; T finished only if all was done; I4 no checkpoint that was not committed
at any time         X a controller does not end by itself; E no error is logged; I5 no step by an older generation;
                    G (grid_worker.py) in a grid all have applied the same steps, every part has a holder, and no step
                    is made twice but after a restore;
                    I32 one job per key; F, C (fence.py) one controller, and one call about a node, at a time;
                    B (heap.py) nothing goes round for ever;
                    U (dear.py) no plan is dearer than what is left;
                    L31 no node ends for its lease while its controller is there and reachable
every five seconds  I1 the cloud's bill stays within the budget; I2 no node twice; I3 no paid node is unknown;
                    I7 a plan that is waited for is being made; I18 what was promised is known;
                    P no worker is waited for on a node that is gone; N a notice that an agent heard is known
at the end          (verdict.py) I6 ledger and bill agree; I8 nothing is left; I9 no secret is told; I10 every
                    decision is, with its reason; L everything has ended an hour after the last fault;
                    A (written.py) the log and its archive are whole;
                    S, M (steady.py) as long as nothing changes few nodes are rented, and no job moves to and fro
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from sublet.errors import BadInput, InvariantBroken, NoAccess, NoAnswer, StaleController, TooManyCalls
from sublet.kernel.cluster import NodePhase
from sublet.kernel.invariants import check
from sublet.runtime.controller.core.loop import Controller
from sublet.runtime.controller.inbox import Ending
from sublet_lab.world.cloud import Instance
from sublet_lab.world.controllers import Complaints
from sublet_lab.world.machine import TRIPS
from sublet_lab.world.stage import Stage
from sublet_lab.world.written import last_event, shelved, unanswered

LOOK_S = 5.0
UNKNOWN_S = 240.0  # sweeps, absences and lies of listings are over by then
PHANTOM_S = 20.0
UNHEARD_S = 15.0  # beside half a lease, after which an agent gives up a line that is silent
NO_PLAN_S = 10.0
GRAINS_PER_USD = 3.6e15


class Broken(Exception):
    """A law does not hold."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law, self.what = law, what


class Laws:
    """The laws of one life; `each` after every event."""

    def __init__(self, stage: Stage, complaints: Complaints) -> None:
        self._stage, self._complaints = stage, complaints
        self._kernel_seen = -1
        self._looked_s = 0.0
        self._unknown: dict[str, float] = {}  # node -> since when
        self._phantoms: dict[tuple[str, str], float] = {}  # (job, worker) -> since when
        self._unheard: dict[str, float] = {}  # node whose notice the controller does not know -> since when
        self._no_plan_s: float | None = None
        self._allowed_usd: defaultdict[str, float] = defaultdict(float)  # by job, beyond its own budget
        self._swallowed: set[str] = set()  # nodes whose lines went nowhere, when it was last looked at
        self._held_gpus: Counter[str] = Counter()  # by job, when it was last looked at
        self._known: frozenset[str] = frozenset()  # nodes, as of the last event that was written down
        self.starts: set[int] = set()  # the last event that was written, at each start of a controller
        self._off_s = 0.0  # by which cloud time may be ahead, at the last start
        self.allowed_grains = 0.0  # that the cloud may charge beyond the budget: nothing could be given back
        stage.controllers.started.append(self._started)

    def break_law(self, law: str, what: str) -> None:
        """Say when."""
        raise Broken(law, f"{what} at {self._stage.world.age_s:.3f} s")

    # ------------------------------------------------------------------ at any time

    def each(self) -> None:
        """After everything that happens, and mostly in no time: the kernel has heard nothing new."""
        stage = self._stage
        controllers = stage.controllers
        if stage.truth.complaints:
            self.break_law(*stage.truth.complaints[0])
        if TRIPS:
            self.break_law("X", f"{TRIPS[0]} of the real machine was asked")
        if stage.users.doubles:
            self.break_law("I32", stage.users.doubles[0])
        if controllers.fence.slept and (why := controllers.fence.complaint(stage.world.now_s)):
            self.break_law("F", why)
        if controllers.fence.crossed:
            self.break_law("C", controllers.fence.crossed)
        if not controllers.alive:
            return
        self._controller_lives()
        controller = controllers.controller
        if controller is None:
            return
        if (seen := controller.inbox.kernel.seen) != self._kernel_seen and controllers.ready:
            self._kernel_seen = seen
            self._after_events(controller)
        if stage.world.now_s - self._looked_s > LOOK_S and controllers.alive:
            passed_s = stage.world.now_s - self._looked_s
            if controllers.process is None or controllers.process.stopped_until_s < self._looked_s:  # it was there
                passed_s = min(passed_s, 2 * LOOK_S)
            self._looked_s = stage.world.now_s
            self._look(controller, passed_s)

    def _controller_lives(self) -> None:
        stage, controllers = self._stage, self._stage.controllers
        process, running = controllers.process, controllers.running
        if controllers.refusal is not None:
            if not self._disk_was_full(controllers.refusal) and not stage.foreign:
                self.break_law("X", f"no controller can start: {controllers.refusal}")
            controllers.refusal = None
            if process is not None:
                controllers.crash(process)
            return
        if running is not None and running.done() and not stage.ending:
            error = None if running.cancelled() else running.exception()
            locked_out = isinstance(error, NoAccess) and stage.effects["credentials"] + stage.effects["ec2_code"] > 0
            unread = isinstance(error, BadInput) and bool(stage.foreign)  # it needs a file that is away
            meant = self._disk_was_full(error) or locked_out or unread
            if not meant and not self._cloud_was_silent(error):
                self.break_law("X", f"the controller ended: {error!r}")
            if process is not None:
                controllers.crash(process)  # a user makes room, logs in or waits, and starts it again
        if process is not None and process.loop.failures:
            self.break_law("E", f"uncaught {process.loop.failures[0]}")
        if self._complaints.seen:
            text, error = self._complaints.seen[0]
            self._complaints.seen.clear()
            meant = self._disk_was_full(error) or isinstance(error, StaleController)  # which F looks at
            if not meant and not self._policy_was_mad(text):
                self.break_law("E", f"{text[:300]} {error!r}")

    def _disk_was_full(self, error: BaseException | None) -> bool:
        """That ends a controller, as it should."""
        return self._stage.disk.was_full and "disk is full" in f"{error} {error!r}"

    def _policy_was_mad(self, text: str) -> bool:
        """A plan that is not allowed is told as an error, as it should be."""
        return self._stage.effects["policy_nonsense"] > 0 and text.startswith(("the plan at ", "shapes", "hold"))

    def _cloud_was_silent(self, error: BaseException | None) -> bool:
        """... so does a cloud that lists nothing at a start: what is rented ends with its lease, not with a budget."""
        effects, starts = self._stage.effects, not self._stage.controllers.ready
        if isinstance(error, TooManyCalls):
            return starts and effects["ec2_code"] > 0
        return isinstance(error, NoAnswer) and starts and effects["list_lie"] + effects["ec2_code"] > 0

    def lease_ended(self, instance: Instance) -> None:
        """An agent went because it was not renewed. Was there no controller?"""
        stage, now_s = self._stage, self._stage.world.now_s
        controllers, quiet_s = stage.controllers, stage.story.lease_s * 1.2
        process = controllers.process
        if process is None or process.dead or instance.node is None:
            return
        healthy = now_s - controllers.up_since_s > quiet_s and process.stopped_until_s < now_s - quiet_s
        mute_s = max(stage.parted_until_s.get(instance.node_id, -math.inf), instance.node.stopped_until_s)
        linked = now_s - mute_s > quiet_s
        if healthy and linked and self._is_in_use(instance.node_id):
            stage.truth.complaints.append(
                ("L31", f"{instance.node_id} ended for its lease though its controller was there and reachable")
            )

    def _is_in_use(self, node_id: str) -> bool:
        """The controller counts on it; one that it gives back may end as it likes."""
        controller = self._stage.controllers.controller
        node = None if controller is None else controller.kernel.cluster.nodes.get(node_id)
        if node is None or controller is None:
            return False
        return node.phase in (NodePhase.READY, NodePhase.NOTICED) or node_id in controller.context.nodes.silent

    def _started(self, away_s: float) -> None:
        """A controller starts: nodes that ran on without one may have cost anything, for a lease."""
        stage = self._stage
        self._kernel_seen, self._no_plan_s = -1, None
        self.starts.add(last_event(stage.disk))
        offers = {offer.id: offer for offer in stage.cloud.offers}
        asked = unanswered(stage.disk, stage.controllers.files.contents)
        stage.cloud.ordered |= {node_id: offers[offer_id] for node_id, offer_id in asked.items()}
        stage.cloud.nobody_wrote_down(self._known)
        dearest = max((offer.price.micro_usd_per_h for offer in stage.cloud.offers), default=0) * 1e6
        burn = max(stage.cloud.burn_grains_per_s(), dearest)
        unseen_s = min(away_s, stage.story.lease_s * 1.4 + 10.0)
        self.allowed_grains += unseen_s * burn
        unseen_s += stage.clock_off_s - self._off_s  # after a boot jobs are billed for more than was, rather than less
        self._off_s = stage.clock_off_s
        for plan in stage.story.jobs:
            self._allowed_usd[plan.name] += unseen_s * plan.max_workers * dearest / GRAINS_PER_USD

    # ------------------------------------------------------------------ after events

    def _after_events(self, controller: Controller) -> None:
        try:
            check(controller.kernel)
        except InvariantBroken as error:
            raise Broken("K", f"{error} at {self._stage.world.age_s:.3f} s") from error
        self._known = frozenset(controller.kernel.cluster.nodes)
        for job_id, record in controller.records.items():
            truth = self._stage.truth.jobs[job_id]
            if record.outcome is Ending.FINISHED and not truth.done:
                self.break_law("T", f"{job_id} counts as finished; really {truth.top} of {truth.steps} steps were made")
            if truth.sdk and (record.checkpoint_step or 0) > truth.saved:
                self.break_law(
                    "I4", f"{job_id}: checkpoint {record.checkpoint_step} was never committed ({truth.saved} was)"
                )

    # ------------------------------------------------------------------ now and then

    def _look(self, controller: Controller, passed_s: float) -> None:
        stage = self._stage
        process = stage.controllers.process
        now_s = stage.world.now_s
        hindered = now_s < stage.unpaid_until_s or not stage.controllers.ready
        hindered = hindered or (process is not None and now_s < process.stopped_until_s)
        if hindered:
            self.allowed_grains += stage.cloud.burn_grains_per_s() * passed_s
        self._budget_holds()
        slept = process is not None and now_s >= process.stopped_until_s > now_s - passed_s
        slept = slept and not stage.cloud.keeps_records
        reached = self._reached()
        self._own_budgets_hold(controller, passed_s, reached, hindered=hindered, slept=slept)
        self._nodes_are_known(controller)
        if not stage.controllers.ready:
            return
        self._workers_are_somewhere(controller)
        self._notices_are_known(controller, reached)
        self._plans_are_made(controller)
        for name, job_id in stage.users.promised.items():
            if job_id not in controller.records and job_id not in shelved(stage.disk):
                self.break_law("I18", f"{job_id} of {name} was promised and is not known")

    def _budget_holds(self) -> None:
        stage = self._stage
        if stage.story.purse_usd is None:
            return
        purse_usd = stage.story.purse_usd + stage.users.topped_up_usd
        spent = stage.cloud.spent_grains()
        allowed = self.allowed_grains + stage.forgotten_grains + stage.cloud.short_grains
        if spent > purse_usd * GRAINS_PER_USD + allowed:
            self.break_law(
                "I1", f"the cloud charges USD {spent / GRAINS_PER_USD:.4f} of a budget of USD {purse_usd:.4f}"
            )

    def _own_budgets_hold(
        self, controller: Controller, passed_s: float, reached: set[str], *, hindered: bool, slept: bool
    ) -> None:
        """J: like the budget of all; and work on a node that cannot be reached is ended by its lease alone."""
        users = self._stage.users
        offers, ledger = controller.kernel.supply.offers.values(), controller.kernel.ledger
        dearest_usd_per_s = max(ledger.price(each.id).usd_per_h / each.gpus_per_node for each in offers) / 3600.0
        for plan in self._stage.story.jobs:
            job_id = users.promised.get(plan.name, "")
            if plan.purse_usd is None or job_id not in controller.records:
                continue
            workers = controller.records[job_id].group.workers.values()
            burn_usd_per_s = controller.bill.burn_usd_per_h(job_id) / 3600.0
            if slept:  # what it held then may be gone by now, and no record says since when
                burn_usd_per_s = max(burn_usd_per_s, self._held_gpus[job_id] * dearest_usd_per_s)
            if hindered or slept or not reached.issuperset(worker.node_id for worker in workers):
                self._allowed_usd[plan.name] += burn_usd_per_s * passed_s
            self._held_gpus[job_id] = sum(gpus for _, gpus in controller.kernel.tenancy.placement.get(job_id, ()))
            purse_usd, spent_usd = plan.purse_usd + users.topped_up[plan.name], controller.bill.jobs[job_id].total.usd
            if spent_usd > purse_usd + self._allowed_usd[plan.name]:
                self.break_law("J", f"{job_id} is billed USD {spent_usd:.5f} of its own USD {purse_usd:.5f}")

    def _reached(self) -> set[str]:
        """Nodes whose agents have heard all that they were told since the last look."""
        stage, since_s = self._stage, self._stage.world.now_s - LOOK_S
        swallowed = {each.socket.host for each in stage.network.connections if each.down.hole}
        deaf, self._swallowed = swallowed | self._swallowed, swallowed
        for instance in stage.cloud.alive():
            node, parted_s = instance.node, stage.parted_until_s.get(instance.node_id, -math.inf)
            if node is None or not node.connected or max(parted_s, node.stopped_until_s) >= since_s:
                deaf.add(instance.node_id)
        return {instance.node_id for instance in stage.cloud.alive()} - deaf

    def _nodes_are_known(self, controller: Controller) -> None:
        stage, now_s = self._stage, self._stage.world.now_s
        paid: dict[str, Instance] = {}
        for instance in stage.cloud.alive():
            if instance.node_id in paid:
                self.break_law("I2", f"two instances for {instance.node_id}")
            paid[instance.node_id] = instance
        known = controller.kernel.cluster.nodes
        self._unknown = {node: self._unknown.get(node, now_s) for node in paid if node not in known}
        for node_id, since_s in self._unknown.items():
            if now_s - max(since_s, stage.controllers.up_since_s, stage.unpaid_until_s) > UNKNOWN_S:
                self.break_law("I3", f"{node_id} is paid for and unknown since {now_s - since_s:.0f} s")

    def _workers_are_somewhere(self, controller: Controller) -> None:
        now_s, nodes = self._stage.world.now_s, controller.kernel.cluster.nodes
        waited = {
            (job_id, worker.id): worker.node_id
            for job_id, record in controller.records.items()
            for worker in record.group.workers.values()
            if worker.node_id not in nodes
        }
        self._phantoms = {key: self._phantoms.get(key, now_s) for key in waited}
        for key, since_s in self._phantoms.items():
            if now_s - max(since_s, self._stage.controllers.up_since_s) > PHANTOM_S:
                self.break_law(
                    "P", f"{key[1]} is waited for on {waited[key]}, which is gone since {now_s - since_s:.0f} s"
                )

    def _notices_are_known(self, controller: Controller, reached: set[str]) -> None:
        """N: with or without a controller when an agent first said it."""
        stage, now_s = self._stage, self._stage.world.now_s
        known, process = controller.kernel.cluster.nodes, stage.controllers.process
        unheard = {
            instance.node_id
            for instance in stage.cloud.alive()
            if instance.node is not None and instance.node.noticed and instance.node_id in reached
            if instance.node_id in known and known[instance.node_id].phase is NodePhase.READY
        }
        self._unheard = {node_id: self._unheard.get(node_id, now_s) for node_id in unheard}
        awake_s = max(stage.controllers.up_since_s, 0.0 if process is None else process.stopped_until_s)
        for node_id, since_s in self._unheard.items():
            if now_s - max(since_s, awake_s) > UNHEARD_S + stage.story.lease_s / 2:
                self.break_law("N", f"the agent of {node_id} knows of a notice, its controller does not")

    def _plans_are_made(self, controller: Controller) -> None:
        now_s = self._stage.world.now_s
        if not controller.kernel.planning or controller.planner.asked or self._stage.ending:
            self._no_plan_s = None
            return
        self._no_plan_s = now_s if self._no_plan_s is None else self._no_plan_s
        if now_s - self._no_plan_s > NO_PLAN_S:
            self.break_law("I7", "a plan is waited for and none is made")

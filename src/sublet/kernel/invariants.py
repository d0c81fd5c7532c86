"""The laws of the kernel. `check` recomputes from scratch what the kernel keeps up to date, and compares."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import NoReturn
from weakref import WeakKeyDictionary

from sublet.domain.budget import ORG
from sublet.domain.money import Money, microseconds
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.errors import InvariantBroken
from sublet.kernel.changing import IN_TRANSIT
from sublet.kernel.cluster import NodePhase
from sublet.kernel.kernel import Kernel
from sublet.kernel.ledger import Lease, Ledger
from sublet.kernel.placing import is_in_blocks

PLACED = frozenset({Phase.STARTING, Phase.RUNNING, Phase.RESIZING})


def check(kernel: Kernel) -> None:
    """Raise InvariantBroken, with the job's story where one is to blame, unless every law holds."""
    _jobs_are_in_one_place(kernel)
    _gpus_are_counted_once(kernel)
    _blocks_are_whole(kernel)
    _promises_add_up(kernel)
    _steady_gpus_are_on_demand(kernel)
    _grids_are_whole(kernel)
    _paid_nodes_are_held_nodes(kernel)
    _the_bill_is_intervals_times_prices(kernel)
    _limits_hold(kernel)
    _budgets_hold(kernel)
    _nobody_is_stuck(kernel)
    _nobody_outstays_a_notice(kernel)


def _broken(law: str, found: str, story: Callable[[], list[str]] = list) -> NoReturn:
    raise InvariantBroken(law, found, story())


def _jobs_are_in_one_place(kernel: Kernel) -> None:
    for job_id, state in kernel.jobs.items():
        story = partial(kernel.story, job_id)
        if (state.shape is not None) != (job_id in kernel.active):
            _broken("a job with a shape is active", job_id, story)
        waits = state.shape is None and state.phase is Phase.WAITING and not state.job.paused
        if waits != (job_id in kernel.waiting):
            _broken("a job without shape and GPUs waits", job_id, story)
        if state is not kernel.active.get(job_id, state):
            _broken("a job has one state", job_id, story)
        held = sum(gpus for _, gpus in kernel.tenancy.placement.get(job_id, ()))
        if held != state.gpus:
            _broken("a job holds the GPUs of its state", f"{job_id}: {held} != {state.gpus}", story)
    holders = kernel.tenancy.placement.keys() | kernel.tenancy.leaving.keys() | kernel.active.keys()
    if ended := holders - kernel.jobs.keys():
        _broken("an ended job holds nothing", str(ended))


def _gpus_are_counted_once(kernel: Kernel) -> None:
    on_node: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for held in (kernel.tenancy.placement, kernel.tenancy.leaving):
        for job_id, placement in held.items():
            for node_id, gpus in placement:
                if gpus <= 0:
                    _broken("a share of a node is positive", f"{job_id} {node_id}", partial(kernel.story, job_id))
                on_node[node_id][job_id] += gpus
    if not on_node.keys() <= kernel.cluster.nodes.keys():
        _broken("GPUs are on nodes that exist", str(sorted(on_node)))
    free: dict[str, int] = defaultdict(int)
    rooms: dict[tuple[str, Market], int] = defaultdict(int)
    for node in kernel.cluster.nodes.values():
        if on_node[node.id] != node.jobs:
            _broken("a node knows the jobs on it", f"{node.id}: {node.jobs}")
        used = sum(node.jobs.values())
        if used + node.free != node.offer.gpus_per_node:
            _broken("used and free make a node", f"{node.id}: {used}+{node.free}")
        if node.free < 0:
            _broken("a GPU has one user", node.id)
        if node.phase is NodePhase.READY:
            free[node.offer.pool] += node.free
            rooms[node.offer.pool, node.offer.market] += node.free
        if node.phase in (NodePhase.REQUESTED, NodePhase.RELEASING) and not node.idle:
            _broken("no job is on a node that is coming or going", f"{node.id}: {node.jobs}")
    for pool in kernel.pools:
        if free[pool] != kernel.cluster.free_gpus[pool]:
            _broken("free GPUs add up", pool)
        spot = kernel.cluster.spot_room(pool, ())
        if rooms[pool, Market.SPOT] != spot:
            _broken("free GPUs add up by market", f"{pool}: {spot} on spot")


def _blocks_are_whole(kernel: Kernel) -> None:
    for job_id, placement in kernel.tenancy.placement.items():
        if not is_in_blocks(placement, kernel.jobs[job_id].job.block):
            _broken("GPUs of a job come in its blocks", f"{job_id}: {placement}", partial(kernel.story, job_id))


def _promises_add_up(kernel: Kernel) -> None:
    promised: dict[str, int] = defaultdict(int)
    steady: dict[str, int] = defaultdict(int)
    for state in kernel.active.values():
        if state.shape is not None:
            promised[state.shape.pool] += state.shape.gpus
            steady[state.shape.pool] += state.shape.steady
    promises = kernel.tenancy.promises
    for pool, gpus in promises.promised.items():
        if gpus != promised[pool]:
            _broken("promises add up", f"{pool}: {gpus} != {promised[pool]}")
    for pool, gpus in promises.steady.items():
        if gpus != steady[pool]:
            _broken("promises on demand add up", f"{pool}: {gpus} != {steady[pool]}")


def _steady_gpus_are_on_demand(kernel: Kernel) -> None:
    for job_id, state in kernel.jobs.items():
        if state.runs_in is not None and state.phase in PLACED:
            sure, steady = kernel.cluster.on_demand(kernel.tenancy.placement[job_id]), state.runs_in.steady
            if sure < steady:
                _broken("steady GPUs are on demand", f"{job_id}: {sure} of {steady}", partial(kernel.story, job_id))
            core = 0 if state.shape is None else state.job.min_on_demand  # without a shape it is about to be stopped
            if sure < core:
                found = f"{job_id}: {sure} of {core}"
                _broken("a job trains with its core on demand", found, partial(kernel.story, job_id))


def _grids_are_whole(kernel: Kernel) -> None:
    for job_id, state in kernel.jobs.items():
        if (shape := state.runs_in) is None or (grid := shape.grid) is None or state.phase not in PLACED:
            continue
        story, placement = partial(kernel.story, job_id), kernel.tenancy.placement[job_id]
        seated = kernel.cluster.seats(placement, grid)
        found = f"{job_id}: {grid} on {placement}"
        places = [place for each in seated.values() for place in each if place is not None]
        spread = {node_id: len(each) for node_id, each in seated.items()}
        if spread != dict(placement):
            _broken("a GPU is in at most one place of one grid", found, story)
        every = sorted((copy, part) for copy in range(grid.copies) for part in range(grid.parts))
        if sorted(places) != every:
            _broken("every part of a running grid has its copies", found, story)
        sure = kernel.cluster.on_market(Market.ON_DEMAND, placement)
        pinned = {place[1] for node_id, _ in sure for place in seated[node_id] if place is not None}
        if len(pinned) != grid.parts <= shape.steady:
            _broken("a steady part that is a whole copy holds every part", found, story)


def _paid_nodes_are_held_nodes(kernel: Kernel) -> None:
    paid = {lease.node_id for lease in kernel.ledger.open_leases()}
    if paid != kernel.cluster.nodes.keys():
        _broken("we pay for what we hold", str(paid ^ kernel.cluster.nodes.keys()))
    held: dict[str, int] = defaultdict(int)
    leaving: dict[str, int] = defaultdict(int)
    for node in kernel.cluster.nodes.values():
        stays = node.phase in (NodePhase.REQUESTED, NodePhase.READY)
        (held if stays else leaving)[node.offer.id] += 1
    for offer_id in kernel.supply.offers:
        if held[offer_id] != kernel.cluster.held[offer_id]:
            _broken("held nodes add up", offer_id)
        if leaving[offer_id] != kernel.cluster.leaving[offer_id]:
            _broken("leaving nodes add up", offer_id)


def _the_bill_is_intervals_times_prices(kernel: Kernel) -> None:
    """Bill every lease anew, interval by interval, the long way round; a closed one is final, so once is enough."""
    ledger = kernel.ledger
    count, grains, anew = _audited.get(ledger, (0, ledger.forgotten_grains, ledger.billed_anew))
    if anew != ledger.billed_anew:
        count, grains = 0, ledger.forgotten_grains
    grains += sum(_billed_anew(kernel, lease) for lease in ledger.closed[count:])
    _audited[ledger] = (len(ledger.closed), grains, ledger.billed_anew)
    grains += sum(_billed_anew(kernel, lease) for lease in ledger.open_leases())
    grains += ledger.besides(kernel.now_s).grains
    spent = ledger.spent(kernel.now_s)
    if grains != spent.grains:
        _broken("the bill is intervals times prices", f"{Money(grains)} != {spent}")


_audited: WeakKeyDictionary[Ledger, tuple[int, int, int]] = WeakKeyDictionary()  # closed leases seen, their bill, ...


def _billed_anew(kernel: Kernel, lease: Lease) -> int:
    if lease.void:
        return 0
    grains = 0
    end_us = microseconds(kernel.now_s) if lease.end_us is None else lease.end_us
    prices = kernel.ledger.prices[lease.offer_id]
    first = bisect_right(prices, lease.start_us, key=lambda change: change[0]) - 1
    past = bisect_right(prices, end_us, key=lambda change: change[0])
    changes = prices[max(first, 0) : past]
    for (since_us, price), (until_us, _) in zip(changes, [*changes[1:], (end_us, None)], strict=True):
        grains += price.micro_usd_per_h * max(0, min(until_us, end_us) - max(since_us, lease.start_us))
    if lease.end_us is not None:
        grains += lease.last_price.micro_usd_per_h * max(0, lease.minimum_us - (end_us - lease.start_us))
    return grains


def _limits_hold(kernel: Kernel) -> None:
    for offer_id, limit in kernel.supply.limits.items():
        held = kernel.cluster.held[offer_id]
        if limit.max_nodes is not None and held > limit.max_nodes:
            _broken("nodes held stay within the limit", f"{offer_id}: {held} > {limit.max_nodes}")
    purse = kernel.supply.budget.purse
    if purse is not None and not kernel.supply.purse.broke:  # it may have been made smaller than what was spent
        bill = kernel.ledger.spent(kernel.now_s) + kernel.supply.purse.committed(kernel.now_s)
        if bill > purse:
            _broken("spending and the cost of giving up stay within the budget", f"{bill} of {purse}")
    for pool in kernel.pools.values():
        for offer_ids, most in pool.quotas:
            gpus = sum(kernel.cluster.held[offer_id] for offer_id in offer_ids) * pool.gpus_per_node
            if gpus > most:
                _broken("a pool stays within its quota", f"{pool.name}: {gpus} of {', '.join(offer_ids)}")


def _budgets_hold(kernel: Kernel) -> None:
    """At every level, whatever the world did; and every held GPU has a budget that pays for it."""
    tree, now_us = kernel.budgets, microseconds(kernel.now_s)
    if not tree.shares.counts:
        return
    shares = {
        job_id: {node_id: each.gpus for node_id, each in found.items()} for job_id, found in tree.shares.open.items()
    }
    on_node: dict[str, dict[str, int]] = defaultdict(dict)
    for node in kernel.cluster.nodes.values():
        for job_id, gpus in node.jobs.items():
            on_node[job_id][node.id] = gpus
    if shares != on_node:
        _broken("a job pays for what it holds", f"{shares} != {dict(on_node)}")
    for holder, allowance in tree.allowed.items():
        stays = [job_id for job_id in tree.shares.jobs(holder) if kernel.jobs[job_id].phase is not Phase.STOPPING]
        if holder != ORG and stays and tree.left(holder, now_us) < 0:
            found = f"{holder}: {Money(tree.spent(holder, now_us) - allowance.opening)} of {allowance.amount}"
            _broken("jobs paid from a spent budget leave", found)
        if allowance.ends_s is not None and allowance.ends_s <= kernel.now_s:
            _broken("a period ends when it does", str(holder))


def _nobody_is_stuck(kernel: Kernel) -> None:
    """A job that has a promise but not its GPUs has something under way that will bring them."""
    under_way = kernel.planning or kernel.planning_later
    under_way = under_way or any(n.phase is not NodePhase.READY for n in kernel.cluster.nodes.values())
    under_way = under_way or any(state.phase in IN_TRANSIT for state in kernel.jobs.values())
    if under_way:
        return
    for state in kernel.jobs.values():
        settled = state.shape is None or (state.phase is Phase.RUNNING and _has(kernel, state, state.shape))
        settled = settled or state.job.id in kernel.tenancy.growing.put_aside  # a timer is set
        settled = settled or _waits_for_blocks(kernel, state)
        if not settled:
            _broken("no job is stuck", f"{state.job.id} is {state.phase}", partial(kernel.story, state.job.id))


def _waits_for_blocks(kernel: Kernel, state: JobState) -> bool:
    """Others have parts of the nodes whose whole it needs: it starts when they end, or leave."""
    if state.shape is None or state.job.block == 1:
        return False
    nodes = [node for node in kernel.cluster.nodes.values() if node.offer.pool == state.shape.pool]
    return any(job_id != state.job.id for node in nodes for job_id in node.jobs)


def _has(kernel: Kernel, state: JobState, shape: Shape) -> bool:
    return state.gpus == shape.gpus and kernel.cluster.on_demand(kernel.tenancy.placement[state.job.id]) >= shape.steady


def _nobody_outstays_a_notice(kernel: Kernel) -> None:
    """A job with GPUs of a node that will be taken is on its way, needs others, or is woken in time to leave."""
    tenancy = kernel.tenancy
    for node in kernel.cluster.nodes.values():
        for job_id in node.jobs if node.phase is NodePhase.NOTICED else ():
            state, held = kernel.jobs[job_id], tenancy.placement.get(job_id, ())
            if state.phase is not Phase.RUNNING or node.id not in dict(held):
                continue
            in_line = state.shape is not None and job_id in tenancy.lines[state.shape.pool]
            due_s, wake_s = tenancy.departures.due_s(state.job, held), tenancy.departures.wake_s
            woken = wake_s is not None and wake_s <= due_s
            if not (in_line or woken):
                _broken("no job outstays a notice", f"{job_id} on {node.id}", partial(kernel.story, job_id))

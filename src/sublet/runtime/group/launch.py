"""The order to start one worker: what it finds in its environment, and where a value of the user's own wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.domain.shape import Placement
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire.messages import StartWorker

__all__ = ["start_order"]

# A value in the job file, or on the node, is left as it is.
USERS_FIRST = frozenset({"WANDB_RUN_ID", "WANDB_RESUME", "TORCH_CPP_LOG_LEVEL"})


def start_order(  # noqa: PLR0913 - each is a fact about this worker
    worker_id: str,
    job_id: str,
    spec: JobSpec,
    *,
    rank: int,
    placement: Placement,
    hosts: Sequence[str],
    ours: Mapping[str, str],
    meeting: tuple[str, int] | None,
    restarts: int,
    log: str,
) -> StartWorker:
    """`ours` is what the controller has to say, beside ranks; a script without the SDK meets at `meeting`.

    `placement` counts processes, and `hosts` are the addresses of its nodes.

    Its rank 0 is started before that is known: the agent there finds a free port, and tells.

    One that never has more than one worker, and was not submitted with `torchrun`, is as if started by hand: many
    (nanoGPT, say) train distributed as soon as they find RANK. Any other joins its group at each worker count, at one
    too.
    """
    users = {**spec.env, **spec.secrets}
    env = {name: value for name, value in ours.items() if name not in USERS_FIRST}
    world = sum(gpus for _, gpus in placement)
    joins = spec.torchrun or max(world, spec.max_workers) > 1
    distributed, local_world = joins and not spec.sdk and not spec.per_node, 1
    if spec.sdk:  # as at the start: its session knows better from then on. It sees one GPU, which is number 0 to it
        env |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    elif spec.per_node:
        env |= _node_env(job_id, spec, rank, placement, hosts)
    elif distributed:
        ranks = _torchrun_env(job_id, rank, placement, restarts)
        local_world = int(ranks["LOCAL_WORLD_SIZE"])
        env |= ranks | ({"MASTER_ADDR": meeting[0], "MASTER_PORT": str(meeting[1])} if meeting else {})
    return StartWorker(
        worker_id=worker_id,
        job_id=job_id,
        argv=spec.argv,
        env={**users, **env},
        defaults={name: value for name, value in ours.items() if name in USERS_FIRST and name not in users},
        cwd=spec.cwd,
        python=spec.python,
        log=log,
        gpus=spec.per_node or local_world,
        together=f"{job_id} {ours.get('SUBLET_GENERATION', '')}" if distributed else "",
        offers=distributed and rank == 0,
    )


def _node_env(job_id: str, spec: JobSpec, rank: int, placement: Placement, hosts: Sequence[str]) -> dict[str, str]:
    """Variables as SkyPilot sets them, for a command that is started once per node and starts the rest itself.

    Two of its nodes may be on one machine: each has its own GPUs there.
    """
    addresses = [host for host, (_, count) in zip(hosts, placement, strict=True) for _ in range(count)]
    node = {
        "NODE_RANK": str(rank),
        "NODE_IPS": "\n".join(addresses),
        "NUM_GPUS_PER_NODE": str(spec.per_node if spec.accelerators else 0),
    }
    return {
        **{f"SKYPILOT_{name}": text for name, text in node.items()},
        **{f"SKYPILOT_SETUP_{name}": text for name, text in node.items()},
        "SKYPILOT_NUM_NODES": str(len(addresses)),
        "SKYPILOT_TASK_ID": f"sublet-{job_id}",
    }


def _torchrun_env(job_id: str, rank: int, placement: Placement, restarts: int) -> dict[str, str]:
    """Variables as torchrun sets them, for a script that knows nothing of us."""
    slots = [(local, at) for at, (_, gpus) in enumerate(placement) for local in range(gpus)]
    local_rank, node_rank = slots[rank]
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(len(slots)),
        "LOCAL_WORLD_SIZE": str(placement[node_rank][1]),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(len(placement)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(len(slots)),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": "1000000",
        "TORCHELASTIC_RUN_ID": job_id,
    }

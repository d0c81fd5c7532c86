"""Keys of SkyPilot, dstack or a later Sublet: which only ask for less choice, and are noted, and which are refused."""

from __future__ import annotations

from typing import Final

__all__ = ["FOREIGN", "NOTED"]

_LATER = "leave it out; nothing else does this yet"
_MARKET = "leave it out: the controller rents wherever it is best ('sublet up --provider' says where)"
_BURN = "say it for all jobs together: sublet budget set --burn 15/h"
_GROUP = "submit its jobs one by one: Sublet has no jobs that run together and speak to one another"

_ANYWHERE = "it runs wherever the controller rents"
_NODE = "it has what the node has, which may be less"

# Keys that a job can do without, by the group they stand in, and what it has instead. Each is noted with its value.
NOTED: Final[dict[tuple[str, ...], dict[str, str]]] = {
    (): {
        "config": "it sets SkyPilot's own clouds up; nodes are as the controller rents them",
        "inputs": "it tells how much data there is, and nothing here depends on that",
        "outputs": "it tells how much data there is, and nothing here depends on that",
    },
    ("resources",): {
        **dict.fromkeys(("infra", "cloud", "region", "zone", "instance_type"), _ANYWHERE),
        **dict.fromkeys(("cpus", "memory", "disk_size", "disk_tier", "local_disk", "network_tier"), _NODE),
        "ports": "nothing is opened to the outside: a server on the node is reached from there and from its network",
        "labels": "nodes carry the controller's own",
        "autostop": "nodes go back as soon as no job needs them",
        "accelerator_args": "nodes are as the controller rents them",
        "spot_recovery": "a job goes on by itself after its nodes were taken",
    },
}

# Keys without which a job would be another one, with what to do instead.
FOREIGN: Final[dict[tuple[str, ...], dict[str, str]]] = {
    (): {
        "volumes": "bring the data by file_mounts, and write to SUBLET_CHECKPOINT_DIR: no node has the volume",
        "service": "leave it out: Sublet trains, it does not serve",
        "pool": "leave it out and submit the jobs themselves: workers are rented for each",
        **dict.fromkeys(("execution", "primary_tasks", "termination_delay", "inter_connection"), _GROUP),
        "config": "leave kubernetes.enable_docker out: no job has a docker of its own to build or start others with",
        "experimental": _LATER,
        "event_callback": "poll instead: sublet events JOB -o json",
        "max_duration": "use deadline",
        "utilization_policy": _LATER,
        "backoffLimit": "use retry: {user: N}",
        "activeDeadlineSeconds": "use deadline",
        "terminationGracePeriodSeconds": "use stop_duration",
    },
    ("resources",): {"priority": "use weight", "max_hourly_cost": _BURN},
    ("elastic",): {"min_on_demand": "say it in resources: {min_on_demand: 1}"},
    ("training",): {"batch_policy": "say it in the script: train.session(..., batch_range=(64, 1024))"},
    ("training", "target"): {"epochs": "say it in the script: train.session(..., epochs=10)"},
    ("budget",): {"max_burn": _BURN, "warn_at": "watch it: sublet cost JOB"},
    ("retry",): {"on_events": "use preemption, infra and user", "duration": "use deadline"},
}

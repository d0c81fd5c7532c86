"""Keys of SkyPilot, dstack or a later Sublet that a job file may hold, and what becomes of them here."""

from __future__ import annotations

__all__ = ["FOREIGN"]

_LATER = "leave it out; nothing else does this yet"
_MARKET = "leave it out: the controller rents wherever it is best ('sublet up --provider' says where)"
_BURN = "say it for all jobs together: sublet budget set --burn 15/h"

# Keys that mean something elsewhere, by the group they stand in, with what to do instead.
FOREIGN: dict[tuple[str, ...], dict[str, str]] = {
    (): {
        "volumes": "leave it out: workers see the files of this machine",
        "service": "leave it out: Sublet trains, it does not serve",
        "pool": _MARKET,
        "inputs": _LATER,
        "outputs": _LATER,
        "config": _LATER,
        "experimental": _LATER,
        "event_callback": "poll instead: sublet events JOB -o json",
        "max_duration": "use deadline",
        "utilization_policy": _LATER,
        "backoffLimit": "use retry: {user: N}",
        "activeDeadlineSeconds": "use deadline",
        "terminationGracePeriodSeconds": "use stop_duration",
    },
    ("resources",): {
        **dict.fromkeys(("infra", "cloud", "region", "zone", "instance_type", "ordered"), _MARKET),
        **dict.fromkeys(("cpus", "memory", "disk_size", "disk_tier", "local_disk", "network_tier"), _LATER),
        **dict.fromkeys(("ports", "image_id", "labels", "autostop", "accelerator_args"), _LATER),
        "job_recovery": "use retry",
        "priority": "use weight",
        "max_hourly_cost": _BURN,
    },
    ("elastic",): {"min_on_demand": "say it in resources: {min_on_demand: 1}"},
    ("training",): {"batch_policy": "say it in the script: train.session(..., batch_range=(64, 1024))"},
    ("training", "target"): {"epochs": "say it in the script: train.session(..., epochs=10)"},
    ("budget",): {"max_burn": _BURN, "warn_at": "watch it: sublet cost JOB"},
    ("retry",): {"on_events": "use preemption, infra and user", "duration": "use deadline"},
}

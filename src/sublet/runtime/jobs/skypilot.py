"""SkyPilot files in the words of a job file; keys that a job need not have are taken out, and noted.

Nothing is decided here that a job file of Sublet's own could not say: what is left is checked like any other file.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

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
MAY_BE_EMPTY: Final = ("setup", "file_mounts", "envs", "secrets", "resources", "workdir", "num_nodes", "name")
LONGEST: Final = 80  # letters of a value in a note


def translate(written: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values of a file as the schema knows them, and what is to be said of them."""
    values: dict[str, Any] = copy.deepcopy(dict(written))
    notes: list[str] = []
    for key in MAY_BE_EMPTY:
        if key in values and values[key] is None:
            del values[key]
    if isinstance(values.get("workdir"), dict):
        values["workdir"] = str(values["workdir"].get("url", ""))
    if not _needs_docker(values.get("config")):
        _take_out(values, (), "", notes)
    resources = values.get("resources")
    if isinstance(resources, dict):
        _translate_resources(resources, values, notes)
    return values, notes


def _translate_resources(resources: dict[str, Any], values: dict[str, Any], notes: list[str]) -> None:
    _take_out(resources, ("resources",), "resources.", notes)
    if "gpus" in resources and "accelerators" not in resources:
        resources["accelerators"] = resources.pop("gpus")
    if isinstance(resources.get("ordered"), list) and "any_of" not in resources:
        resources["any_of"] = resources.pop("ordered")
        notes.append("resources.ordered: any of them, in no order; the policy takes the one that pays")
    if isinstance(resources.get("any_of"), list):
        _translate_choices(resources, notes)
    if "job_recovery" in resources:
        _translate_recovery(resources, values, notes)
    if resources.get("accelerators", "") is None:
        del resources["accelerators"]


def _translate_choices(resources: dict[str, Any], notes: list[str]) -> None:
    """Choices that name a place, a market or an image alone leave the kinds of GPU as they are."""
    choices = [each for each in resources["any_of"] if isinstance(each, dict)]
    if len(choices) < len(resources["any_of"]):
        return  # refused as what it is
    for at, choice in enumerate(choices):
        _take_out(choice, ("resources",), f"resources.any_of.{at}.", notes)
    _join_markets(choices, resources)
    if any("image_id" in choice for choice in choices):
        images = {str(choice.pop("image_id", resources.get("image_id"))) for choice in choices}
        if "None" in images or len(images) == 1:
            notes.append("resources.any_of: one of them needs no image_id, or all the same")
            resources["image_id"] = None if "None" in images else images.pop()
        else:
            resources["image_id"] = sorted(images)
    if all(not choice for choice in choices):
        del resources["any_of"]
    elif all("accelerators" in choice for choice in choices) and resources.pop("accelerators", None) is not None:
        notes.append("resources.accelerators: those of any_of stand in its place")


def _join_markets(choices: list[dict[str, Any]], resources: dict[str, Any]) -> None:
    """If one choice is on spot and another is not, any market will do."""
    flags = {choice.get("use_spot", resources.get("use_spot")) for choice in choices}
    if any("use_spot" in choice for choice in choices) and flags <= {True, False, None}:
        for choice in choices:
            choice.pop("use_spot", None)
        resources["use_spot"] = flags.pop() if len(flags) == 1 else None


def _translate_recovery(resources: dict[str, Any], values: dict[str, Any], notes: list[str]) -> None:
    """Its restarts after errors are our retries after failures of the script; its strategy is the policy's affair."""
    asked = resources["job_recovery"]
    strategy, more = (asked, {}) if isinstance(asked, str | None) else (None, asked)
    if not isinstance(more, dict) or more.keys() - {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}:
        return  # no key of ours
    del resources["job_recovery"]
    if "max_restarts_on_errors" in more and "retry" not in values:
        values["retry"] = {"user": more["max_restarts_on_errors"]}
    if strategy := strategy or more.get("strategy"):
        notes.append(f"resources.job_recovery = {strategy!r}: the policy chooses where it goes on")
    if codes := more.get("recover_on_exit_codes"):
        notes.append(f"resources.job_recovery: all exit codes count alike, not {codes} alone")


def _take_out(group: dict[str, Any], where: tuple[str, ...], place: str, notes: list[str]) -> None:
    for key, instead in NOTED[where].items():
        if key in group:
            value = group.pop(key)
            if value is not None:
                notes.append(f"{place}{key} = {_short(value)}: {instead}")


def _needs_docker(config: Any) -> bool:
    """A setting without which the job is another one: it builds or runs containers itself."""
    inside = config.get("kubernetes") if isinstance(config, dict) else None
    return isinstance(inside, dict) and bool(inside.get("enable_docker"))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."

"""Which machine runs the workers of a job."""

from __future__ import annotations

from collections.abc import Callable

from sublet.runtime.group.elastic import ElasticGroup
from sublet.runtime.group.protocol import Group
from sublet.runtime.group.restarting import RestartingGroup
from sublet.runtime.jobs.spec import JobSpec


def build_group(
    job_id: str,
    spec: JobSpec,
    *,
    log_of: Callable[[str], str],
    env: Callable[[], dict[str, str]],
    host_of: Callable[[str], str] = lambda _: "",
    era: int = 0,
) -> Group:
    """`log_of(worker_id)` names the file for its output, `env()` adds to its environment, `era` is the controller's.

    `host_of(node_id)` is where others reach that node, "" as long as its agent has not said so.
    """
    machine = ElasticGroup if spec.sdk else RestartingGroup
    return machine(job_id, spec, log_of=log_of, env=env, host_of=host_of, era=era)

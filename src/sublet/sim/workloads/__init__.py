"""Jobs to simulate: readers of public traces, one documented CSV format, and seeded generators."""

from sublet.sim.workloads.catalog import CATALOG, Entry, load_workload, workload_names
from sublet.sim.workloads.csvformat import DEFAULT_SPEEDUP, read_csv, workload_from_bytes, write_csv
from sublet.sim.workloads.generate import generate
from sublet.sim.workloads.workload import Workload

__all__ = [
    "CATALOG",
    "DEFAULT_SPEEDUP",
    "Entry",
    "Workload",
    "generate",
    "load_workload",
    "read_csv",
    "workload_from_bytes",
    "workload_names",
    "write_csv",
]

"""Facts about GPUs: memory and peak rates, one row per kind."""

from __future__ import annotations

import math
from pathlib import Path

from sublet import data
from sublet.data.csvfile import Bounds, TextTable, read_columns
from sublet.domain.offer import Gpu

__all__ = ["load_gpus", "read_gpus"]

RATES = ("fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops")
LINKS = ("mem_bw_gbps", "nvlink_gbps", "pcie_gbps")  # the file writes gbps for gigabytes per second


def load_gpus() -> dict[str, Gpu]:
    """The GPUs that Sublet knows, by the name that every other file uses."""
    return read_gpus(data.locate("gpus.csv"))


def read_gpus(path: str | Path) -> dict[str, Gpu]:
    """A file with the columns of `gpus.csv`; an empty rate is one that is not recorded."""
    table = read_columns(path, ("gpu", "vendor", "mem_gib", *RATES, *LINKS))
    table.check_names("gpu")
    mem_gib_R = table.floats("mem_gib", Bounds(least=0)).tolist()  # R rows
    known = {name: _read_optional(table, name) for name in (*RATES, *LINKS)}
    gpus: dict[str, Gpu] = {}
    for row, name in enumerate(table.columns["gpu"]):
        if name in gpus:
            raise table.refusal(row, f"GPU {name} stands twice")
        fp32, tf32, fp16, bf16 = (known[rate][row] for rate in RATES)
        bandwidth, nvlink, pcie = (known[link][row] for link in LINKS)
        gpus[name] = Gpu(
            name=name,
            vendor=table.columns["vendor"][row],
            mem_gib=mem_gib_R[row],
            fp32_tflops=fp32,
            tf32_tflops=tf32,
            fp16_tflops=fp16,
            bf16_tflops=bf16,
            mem_bw_gb_per_s=bandwidth,
            nvlink_gb_per_s=nvlink or 0.0,
            pcie_gb_per_s=pcie or 0.0,
        )
    return gpus


def _read_optional(table: TextTable, name: str) -> list[float | None]:
    """A column; None where the field is empty."""
    values = table.floats(name, Bounds(least=0), empty=math.nan).tolist()
    return [None if math.isnan(value) else value for value in values]

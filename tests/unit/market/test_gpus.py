from __future__ import annotations

import pytest

from sublet.errors import BadInput
from sublet.market.catalogue import load_gpus, read_gpus

HEAD = "gpu,vendor,mem_gib,fp32_tflops,tf32_tflops,fp16_tflops,bf16_tflops,mem_bw_gbps,nvlink_gbps,pcie_gbps"


def test_gpu_facts_are_read_with_their_units():
    gpus = load_gpus()
    assert len(gpus) >= 40
    a100 = gpus["A100"]
    assert (a100.mem_gib, a100.bf16_tflops, a100.mem_bw_gb_per_s, a100.nvlink_gb_per_s) == (40, 312, 1555, 600)
    assert gpus["T4"].bf16_tflops is None


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("X,v,8,,,,,,0,16", "GPU X stands twice"),
        ("Y,v,,,,,,,0,16", "mem_gib is ''"),
        ("Y,v,8,,,-1,,,0,16", "fp16_tflops is '-1', not a finite number of at least 0"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused_with_its_line(tmp_path, row, why):
    path = tmp_path / "gpus.csv"
    path.write_text(f"{HEAD}\nX,v,8,,,,,,0,16\n{row}\n")
    with pytest.raises(BadInput, match=f"line 3: {why}"):
        read_gpus(path)

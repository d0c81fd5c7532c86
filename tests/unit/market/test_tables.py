from __future__ import annotations

import gzip

import numpy as np
import pytest

from sublet.errors import BadInput, MissingData
from sublet.market.gpus import load_gpus, read_gpus
from sublet.market.steps import Steps
from sublet.market.tables import read_table


def test_the_first_bytes_and_not_the_name_tell_gzip(tmp_path):
    path = tmp_path / "plain.csv"
    path.write_bytes(gzip.compress(b"a,b\n1,x\n"))
    assert list(read_table(path, ("b", "a")).columns["a"]) == ["1"]


def test_quoted_fields_and_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path):
    path = tmp_path / "sheet.csv"
    path.write_bytes(b'\xef\xbb\xbfa,b\r\n1,"x, y"\r\n2,z\r\n')
    table = read_table(path, ("a", "b"))
    assert list(table.columns["b"]) == ["x, y", "z"]
    assert table.numbers("a").tolist() == [1.0, 2.0]


def test_the_quick_and_the_quoted_way_of_reading_agree(tmp_path):
    plain, quoted = tmp_path / "plain.csv", tmp_path / "quoted.csv"
    plain.write_text("a,b\n1,x\n2,\n")
    quoted.write_text('a,b\n"1","x"\n"2",""\n')
    one, other = read_table(plain, ("a", "b")), read_table(quoted, ("a", "b"))
    assert [list(column) for column in one.columns.values()] == [list(column) for column in other.columns.values()]


def test_a_filter_keeps_the_line_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,x\n2,y\nbad,y\n")
    table = read_table(path, ("a", "b"), containing=["y"])
    assert list(table.lines) == [3, 4]
    with pytest.raises(BadInput, match="line 4"):
        table.numbers("a")


def test_a_wrong_row_is_named_by_its_line(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(BadInput, match=r"line 3: 1 fields where the header has 2") as caught:
        read_table(path, ("a", "b"))
    assert caught.value.line == 3


def test_a_file_that_is_not_there_says_what_to_give(tmp_path):
    with pytest.raises(MissingData, match="next: give the path"):
        read_table(tmp_path / "none.csv", ("a",))


def test_steps_are_our_own_copy_and_cannot_be_changed():
    t_s = np.array([0.0, 1.0])
    steps = Steps(t_s=t_s, value=np.array([1, 2]))
    t_s[0] = 99.0
    assert steps.at(0.5, before=0) == 1
    with pytest.raises(ValueError, match="read-only"):
        steps.t_s[0] = 5.0


def test_gpu_facts_are_read_with_their_units():
    gpus = load_gpus()
    assert len(gpus) >= 40
    a100 = gpus["A100"]
    assert (a100.mem_gib, a100.bf16_tflops, a100.mem_bw_gb_per_s, a100.nvlink_gb_per_s) == (40, 312, 1555, 600)
    assert gpus["T4"].bf16_tflops is None


def test_a_gpu_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "gpus.csv"
    head = "gpu,vendor,mem_gib,fp32_tflops,tf32_tflops,fp16_tflops,bf16_tflops,mem_bw_gbps,nvlink_gbps,pcie_gbps"
    path.write_text(f"{head}\nX,v,8,,,,,,0,16\nX,v,8,,,,,,0,16\n")
    with pytest.raises(BadInput, match="line 3: GPU X stands twice"):
        read_gpus(path)

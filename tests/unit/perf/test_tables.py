from __future__ import annotations

import gzip

import numpy as np
import pytest

from sublet.data import bundled
from sublet.errors import BadInput, MissingData, UnknownName
from sublet.perf.profiles import PROFILES, Column, Profile, profile
from sublet.perf.tables import read_profile, read_table

ENTRY = Profile(
    name="small",
    file="small.csv",
    description="for this test",
    source="here",
    licence="Apache-2.0",
    columns=(
        Column(name="model", kind="text"),
        Column(name="gpus", kind="count"),
        Column(name="step_time_s", kind="positive"),
        Column(name="batch", kind="positive", optional=True),
    ),
)
ROWS = {
    "alibaba-worker-cov": 100,
    "boa-speedup": 11648,
    "chronus": 30,
    "elasticflow": 169,
    "gavel-physical": 488,
    "gavel-simulation": 489,
    "h200-start": 1,
    "h200-state": 11,
    "h200-step-time": 75,
    "muri": 48,
    "parcae-build-cost": 29,
    "parcae-dp-pp": 161,
    "parcae-layer-times": 30,
    "parcae-reconfiguration": 47,
    "pollux-stat-efficiency": 2152,
    "pollux-step-time": 7103,
    "shockwave-tacc": 482,
    "sia-models": 7,
    "sia-stat-efficiency": 2164,
    "sia-step-time": 20132,
}


@pytest.fixture
def written(tmp_path):
    def write(text, name="small.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    "entry",
    [pytest.param(e, id=e.name, marks=() if e.bundled else pytest.mark.outside_data) for e in PROFILES],
)
def test_every_registered_table_can_be_read_whole(entry, need_profile):
    table = need_profile(entry.name)
    assert len(table) == ROWS[entry.name]
    assert list(table.columns) == [column.name for column in entry.columns]
    assert (table.source, table.licence) == (entry.source, entry.licence)


@pytest.mark.parametrize("entry", PROFILES, ids=lambda entry: entry.name)
def test_only_tables_with_a_licence_are_bundled(entry):
    assert bundled(f"profiles/{entry.file}").exists() == entry.bundled
    assert entry.bundled == (entry.licence != "none stated")


def test_names_are_unique_and_typos_get_help():
    assert len({entry.name for entry in PROFILES}) == len(PROFILES)
    assert profile("muri").file == "muri_iteration_time.csv"
    with pytest.raises(UnknownName, match="did you mean gavel-simulation"):
        profile("gavel-simulations")


def test_a_table_is_read_once_and_cannot_be_changed():
    table = read_profile("muri")
    assert read_profile("muri") is table
    with pytest.raises(ValueError, match="read-only"):
        table.columns["step_time_s"][0] = 1.0
    with pytest.raises(TypeError):
        table.columns["step_time_s"] = np.array([])


def test_rows_are_cut_by_value():
    table = read_profile("gavel-simulation")
    cut = table.rows(model="ResNet-18", gpu="V100", gpus=1, consolidated=1)
    assert cut.texts("gpu") == ["V100"] * len(cut)
    assert len(cut) > 1
    assert len(table.rows(model="none")) == 0
    with pytest.raises(UnknownName, match="did you mean model"):
        table.rows(modle="bert")


def test_good_rows_are_read(written):
    for name in ("small.csv", "small.csv.gz"):
        table = read_table(ENTRY, written("batch,model,gpus,step_time_s,more\n8,bert,2,0.5,x\n,bert,4,1e-3,y\n", name))
        assert table.columns["gpus"].tolist() == [2, 4]
        assert table.texts("model") == ["bert", "bert"]
        assert table.floats("step_time_s").tolist() == [0.5, 0.001]
        assert table.floats("batch")[0] == 8.0
        assert np.isnan(table.floats("batch")[1])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("bert,2,0,8", "step_time_s is '0'"),
        ("bert,2,-1,8", "step_time_s is '-1'"),
        ("bert,2,nan,8", "step_time_s is 'nan'"),
        ("bert,2,inf,8", "step_time_s is 'inf'"),
        ("bert,2,fast,8", "step_time_s is 'fast'"),
        ("bert,2,,8", "step_time_s is ''"),
        ("bert,0,1,8", "gpus is '0'"),
        ("bert,1.5,1,8", "gpus is '1.5'"),
        ("bert,99999999999999999999,1,8", "gpus is"),
        ("bert,2,1,nan", "batch is 'nan'"),
        (",2,1,8", "model is ''"),
        ("bert,2,1", "3 fields"),
        ("bert,2,1,8,9", "5 fields"),
    ],
)
def test_a_broken_row_is_refused_by_file_and_line(written, row, why):
    path = written(f"model,gpus,step_time_s,batch\nbert,1,1,8\nbert,1,2,\n{row}\nbert,1,1,8\n")
    with pytest.raises(BadInput) as caught:
        read_table(ENTRY, path)
    assert caught.value.line == 4
    assert caught.value.source == str(path)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("model,gpus,step_time_s,batch\n", "no row"),
        ("model,gpus,batch\nbert,1,1\n", "missing columns: step_time_s"),
        ("model,gpus,gpus,step_time_s,batch\nbert,1,1,1,1\n", "'gpus' is there twice"),
        ('model,gpus,step_time_s,batch\n"bert,1,1,8\n', "not CSV"),
    ],
)
def test_a_broken_file_is_refused(written, text, why):
    with pytest.raises(BadInput, match=why):
        read_table(ENTRY, written(text))


def test_what_is_not_gzip_or_not_text_or_not_there_is_refused(tmp_path):
    path = tmp_path / "small.csv.gz"
    path.write_bytes(b"model,gpus\n")
    with pytest.raises(BadInput, match="not a gzip file"):
        read_table(ENTRY, path)
    path = tmp_path / "small.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not UTF-8 text"):
        read_table(ENTRY, path)
    with pytest.raises(MissingData, match=r"absent\.csv"):
        read_table(ENTRY, tmp_path / "absent.csv")


def test_a_table_is_printed_in_one_line_and_compared_by_identity():
    table = read_profile("muri")
    assert repr(table) == "ProfileTable(name='muri', rows=48)"
    assert table != table.rows(gpus=1)
    assert len({table, table}) == 1

"""Clones of published artifacts become the files that studies read: small files of the same formats."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from sublet import data
from sublet.cli.main import run
from sublet.errors import BadInput, UnknownName
from sublet_lab.imports.boa import BOA
from sublet_lab.imports.folder import ARTIFACTS, State, artifact_of, digest, expected, held, import_from
from sublet_lab.imports.pollux import LOADS, PHILLY, POLLUX
from sublet_lab.imports.sia import CLUSTERS, SIA, WORKLOADS
from sublet_lab.imports.spot import HOURS, PARCAE, RECORDS, SKYPILOT, SPOTHEDGE
from sublet_lab.imports.tables import MODELS

WORKLOAD = "name,time,application,num_replicas,batch_size\nncf-1,30.25,ncf,2,512\nbert-0,4.0,bert,1,12\n"
PLACED = "placement,local_bsz,step_time,sync_time\n1,4,0.5,0.125\n21,8,0.4553235471248,0.25\n"
SCALED = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,6,4,1.5,1.0\n"
NOISE = "progress,iteration,metric,grad_sqr,grad_var\n7387.466402888686,7387,86.709415806,2.0,6.0\n"
PHILLY_HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
COLUMNS = "job_id,submit_s,duration_s,gpus,model,batch_size,steps,group,gpu,deadline_s,klass"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    """Each repository as it is laid out, with a few rows in every file."""
    root = tmp_path_factory.mktemp("clones")
    sia, adaptdl = root / "sia" / "sia-simulator", root / "pollux" / "simulator"
    for folder, count in WORKLOADS.values():
        for number in range(1, count + 1):
            write(sia / "workloads" / folder / f"workload-{number}.csv", WORKLOAD)
    for model in (*MODELS, "gpt_pmp"):
        for suffix in CLUSTERS:
            write(sia / "traces" / model / f"placements{suffix}.csv", PLACED)
            write(sia / "traces" / model / f"scalability{suffix}.csv", SCALED)
        for batch in (128, 24):
            write(sia / "traces" / model / f"validation-{batch}.csv", NOISE)
    for folder in ("workloads", "workloads-0.5", "workloads-1.5", "workloads-2.0", "workloads-realistic"):
        for number in range(1, 7):
            write(adaptdl / folder / f"workload-{number}.csv", WORKLOAD)
    for model in MODELS:
        write(adaptdl / "traces" / model / "placements.csv", PLACED)
        write(adaptdl / "traces" / model / "scalability.csv", SCALED)
        write(adaptdl / "traces" / model / "validation-12.csv", NOISE)
    times = {f"workload-{number}": {"ncf-1": 78, "bert-0": 4182} for number in range(1, 9)}
    for policy in ("tiresias", "optimus"):
        for load in LOADS:
            write(adaptdl / "results-jobload" / f"{policy}-{load}" / "summary.json", json.dumps({"jcts": times}))
    rows = "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:13:03,2951.0,4,2951.0,6214e9\n\n"
    write(adaptdl / "traces" / "philly.csv", f"{PHILLY_HEADER}{rows}")
    for (folder, kind), gap_s in zip(RECORDS, (195, 300, 32, 600, 600, 600, 600), strict=True):
        for zone, values in (("us-east-1b", [1, 0]), ("us-east-1a", [0, 1, 16])):
            text = json.dumps({"metadata": {"gap_seconds": gap_s}, "data": values})
            write(root / "skypilot" / folder / f"{zone}_{kind}.json", text)
    one = json.dumps({"metadata": {"gap_seconds": 150}, "data": [4]})
    write(root / "spothedge" / "data" / "GCP1" / "us-west1-b_a100_40gb_8.json", one)
    write(root / "boa" / "sia-simulator" / "workloads" / "test.csv", WORKLOAD)
    ticks = [[0, "add", ["a", "b", "c"]], [60000, "remove", ["b"]], [120000, "migration", []], [180000, "no-op", []]]
    told = "\n".join(json.dumps([at, what, {"nodes": nodes}]) for at, what, nodes in ticks)
    for hour in HOURS:
        write(root / "parcae" / "aws" / "traces" / "bert" / f"trace_{hour}.txt", told)
    (root / "philly").symlink_to(root / "pollux")
    return root


def made_of(artifact, clones):
    return dict(artifact.convert(clones / artifact.name))


@pytest.mark.parametrize("artifact", ARTIFACTS, ids=lambda artifact: artifact.name)
def test_a_clone_becomes_the_files_of_the_table_of_digests_and_no_others(artifact, clones):
    assert set(made_of(artifact, clones)) == set(expected(artifact.name))


def test_jobs_are_in_the_order_of_their_arrival(clones):
    text = made_of(BOA, clones)["jobs/boa_test.csv"]
    assert text.splitlines() == [COLUMNS, "bert-0,4,,1,bert,12,,,,,", "ncf-1,30.25,,2,ncf,512,,,,,"]


def test_the_seconds_of_philly_count_from_the_first_arrival(clones):
    rows = made_of(PHILLY, clones)["jobs/philly.csv.gz"].splitlines()
    assert rows[1:] == ["0,0,2951,4,,,,6214e9,,,", "1,2932,66,1,,,,11cb48,,,"]


def test_completion_times_stand_in_the_order_of_arrival(clones):
    rows = made_of(POLLUX, clones)["oracles/pollux_artifact_job_times.csv.gz"].splitlines()
    assert rows[1:3] == ["tiresias,0.5,1,bert-0,4182", "tiresias,0.5,1,ncf-1,78"]
    assert len(rows) == 1 + 2 * 4 * 4 * 2


def test_the_tables_of_pollux_keep_every_digit(clones):
    made = made_of(POLLUX, clones)
    steps = made["profiles/pollux_t4_step_time.csv.gz"].splitlines()
    assert steps[2:4] == ["bert,placements,21,2,3,8,0.4553235471248,0.25", "bert,scalability,,2,6,4,1.5,1.0"]
    noise = made["profiles/pollux_stat_efficiency.csv.gz"].splitlines()
    assert noise[1] == "bert,12,0,7387.466402888686,7387,86.709415806,2.0,6.0"


def test_the_tables_of_sia_have_six_digits_and_what_follows_from_them(clones):
    made = made_of(SIA, clones)
    steps = made["profiles/sia_step_time.csv.gz"].splitlines()
    assert steps[2] == "bert,T4,g4dn.12xlarge,4,placements,2,3,21,8,0.455324,0.25,52.7098"  # 3 x 8 / 0.455324
    assert steps[-1] == "gpt_pmp,RTX-2080Ti,on-prem 8-GPU,8,scalability,2,6,,4,1.5,1.0,"
    noise = made["profiles/sia_stat_efficiency.csv.gz"].splitlines()
    assert noise[1] == "bert,24,0,7387.4664,7387,86.7094,2.0,6.0,72.0"  # 24 x 6 / 2
    assert noise[2].startswith("bert,128,0,")
    assert made["profiles/sia_models.csv"].splitlines()[1] == 'bert,"BERT fine-tuning, SQuAD",24,128,1,4,8'


def test_a_zone_that_ends_early_has_no_further_rows(clones):
    rows = made_of(SKYPILOT, clones)["spot/skypilot_availability_1-node_aws-02-15-2023.csv.gz"].splitlines()
    assert rows[1:] == ["0,us-east-1a,0", "0,us-east-1b,1", "195,us-east-1a,1", "195,us-east-1b,0", "390,us-east-1a,16"]


def test_nodes_of_parcae_are_added_up(clones):
    rows = made_of(PARCAE, clones)["spot/parcae_HADP_trace_hh_55_65.csv.gz"].splitlines()
    assert rows[1:] == ["0,aws-p3,3", "60,aws-p3,2", "120,aws-p3,2", "180,aws-p3,2"]


# ---------------------------------------------------------------------- digests


def digests_of(artifact, clones):
    return {file: digest(text.encode()) for file, text in made_of(artifact, clones).items()}


def test_what_is_not_what_the_studies_were_written_on_is_refused_and_not_written(clones, tmp_path):
    with pytest.raises(BadInput, match=r"git -C .* checkout 3f8207f96634210c182ff17103edfdad840871d5"):
        import_from(BOA, clones / "boa", tmp_path, digests=expected("boa"))
    assert list(tmp_path.rglob("*")) == []


def test_files_are_put_where_studies_look(clones, tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_DATA", str(tmp_path))
    digests = digests_of(SKYPILOT, clones)
    states = import_from(SKYPILOT, clones / "skypilot", tmp_path, digests=digests)
    assert states == dict.fromkeys(digests, State.HERE)
    packed = data.locate("spot/skypilot_preemption_1-node_aws-04-22-2023.csv.gz").read_bytes()
    assert digest(gzip.decompress(packed)) == digests["spot/skypilot_preemption_1-node_aws-04-22-2023.csv.gz"]
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")]


def test_what_ships_is_compared_and_not_written(clones, tmp_path):
    digests = digests_of(PARCAE, clones)
    states = import_from(PARCAE, clones / "parcae", tmp_path, digests=digests)
    assert states == dict.fromkeys(digests, State.SHIPPED)
    assert list(tmp_path.rglob("*")) == []


def test_a_file_that_is_here_is_read_and_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_DATA", str(tmp_path))
    assert held(SPOTHEDGE).files == {"spot/spothedge_GCP1.csv.gz": State.MISSING}
    path = tmp_path / "spot" / "spothedge_GCP1.csv.gz"
    path.parent.mkdir()
    for packed in (gzip.compress(b"t_s,zone,available\n"), b"torn"):
        path.write_bytes(packed)
        assert held(SPOTHEDGE).files == {"spot/spothedge_GCP1.csv.gz": State.OTHER}


def test_what_ships_and_what_is_here_has_the_digests_of_the_table():
    here = {
        file: expected(artifact.name)[file]
        for artifact in ARTIFACTS
        for file in expected(artifact.name)
        if data.bundled(file).exists() or held(artifact).files[file] is not State.MISSING
    }
    assert here
    for file, known in here.items():
        path = data.locate(file)
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert digest(text) == known, file


@pytest.mark.outside_data
@pytest.mark.parametrize("artifact", ARTIFACTS, ids=lambda artifact: artifact.name)
def test_a_real_clone_is_converted_to_the_digest(artifact, tmp_path):
    folder = Path(os.environ.get("SUBLET_CLONES", "")) / artifact.name
    if not os.environ.get("SUBLET_CLONES") or not folder.is_dir():
        pytest.skip(f"no clone of {artifact.repository} as {artifact.name} below SUBLET_CLONES")
    assert set(import_from(artifact, folder, tmp_path, digests=expected(artifact.name))) == set(expected(artifact.name))


def test_a_folder_that_is_no_clone_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(BadInput, match="whole clone"):
        import_from(SKYPILOT, tmp_path, tmp_path, digests=expected("skypilot"))
    with pytest.raises(BadInput, match=r"git clone https://github\.com/skypilot-org/spot-traces"):
        import_from(SKYPILOT, tmp_path / "none", tmp_path, digests=expected("skypilot"))


# ---------------------------------------------------------------------- all or nothing, in words

SIA_FILE = "sia/sia-simulator/traces/ncf/scalability-rtx.csv"
ADDED = '[0, "add", {"nodes": []}]'
BROKEN = {
    "nothing in it": (SIA, SIA_FILE, "", ["is empty"]),
    "other columns": (SIA, SIA_FILE, "a,b\n1,2\n", ["line 1", "step_time"]),
    "not a number": (SIA, SIA_FILE, SCALED.replace("1.5", "slow"), ["line 2", "step_time", "'slow'"]),
    "short row": (SIA, SIA_FILE, SCALED + "1,2\n", ["line 3", "2 fields"]),
    "no date": (
        PHILLY,
        "philly/simulator/traces/philly.csv",
        PHILLY_HEADER + "noon,1,1,1,a\n",
        ["timestamp", "'noon'"],
    ),
    "not JSON": (SPOTHEDGE, "spothedge/data/GCP1/us-west1-b_a100_40gb_8.json", "{", ["not JSON"]),
    "other JSON": (SPOTHEDGE, "spothedge/data/GCP1/us-west1-b_a100_40gb_8.json", "[1]", ["metadata, data"]),
    "no seconds": (
        SPOTHEDGE,
        "spothedge/data/GCP1/us-west1-b_a100_40gb_8.json",
        '{"metadata": {}, "data": [1]}',
        ["gap_seconds is None"],
    ),
    "no times": (POLLUX, "pollux/simulator/results-jobload/optimus-2.0/summary.json", '{"jcts": {}}', ["workload-1"]),
    "other words": (PARCAE, "parcae/aws/traces/bert/trace_ll_10_11.txt", f"{ADDED}\nadd", ["line 2", "'add'"]),
    "a step of no time": (SIA, SIA_FILE, SCALED.replace("1.5", "0"), ["not laid out", "division"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_clone_is_refused_with_the_file_and_what_to_do_and_leaves_nothing(case, clones, tmp_path):
    artifact, file, text, told = BROKEN[case]
    digests, good = digests_of(artifact, clones), (clones / file).read_text(encoding="utf-8")
    write(clones / file, text)
    try:
        with pytest.raises(BadInput) as refused:
            import_from(artifact, clones / artifact.name, tmp_path / "data", digests=digests)
    finally:
        write(clones / file, good)
    words = str(refused.value)
    assert str(clones / file) in words or "not laid out" in told
    assert all(each in words for each in told), words
    assert f"git -C {clones / artifact.name} checkout {artifact.commit}" in words
    assert list(tmp_path.rglob("*")) == []


def test_half_a_clone_leaves_nothing(clones, tmp_path):
    half = tmp_path / "half" / "sia-simulator"
    half.mkdir(parents=True)
    (half / "workloads").symlink_to(clones / "sia" / "sia-simulator" / "workloads")
    with pytest.raises(BadInput, match=r"traces/bert.*not a file of the artifact"):
        import_from(SIA, half.parent, tmp_path / "data", digests=digests_of(SIA, clones))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("at", ["data", "data/profiles", "data/profiles/sia_models.csv"])
def test_a_target_that_cannot_be_written_is_named_and_the_rest_stays_as_it_was(at, clones, tmp_path):
    """A file where a folder has to be, or a folder where a file has to be; files before it are not left there."""
    at = tmp_path / at
    if at.suffix:
        at.mkdir(parents=True)
    else:
        write(at, "mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match=r"cannot be written|a folder where a file") as refused:
        import_from(SIA, clones / "sia", tmp_path / "data", digests=digests_of(SIA, clones))
    assert str(at) in str(refused.value)
    assert "next: " in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("verb", [["data"], ["data", "import", "boa", "."]])
def test_a_data_folder_that_is_a_file_is_no_fault_of_ours(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SUBLET_DATA", str(tmp_path / "file"))
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    assert run(verb) == (0 if verb == ["data"] else 2)
    assert "internal error" not in capsys.readouterr().err


def test_an_unknown_artifact_gets_a_suggestion():
    with pytest.raises(UnknownName, match="pollux"):
        artifact_of("polux")

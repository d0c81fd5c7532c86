"""A profile in a file is read as it was written; one that is wrong is refused by field, value and next step."""

from __future__ import annotations

import json

import pytest

from sublet.errors import BadInput, InvalidValue
from sublet.perf.live.rows import StepRow
from sublet.perf.live.stored import COLUMNS, StoredProfile, speed_from

FACTS = {
    "name": "net",
    "script": "ab" * 32,
    "gpu": "T4",
    "torch": "2.13.0",
    "device": "Tesla T4",
    "date": "2026-11-16T10:00:00+00:00",
    "batches": [64, 32, 1024],
    "batch": 128,
    "noise": 812.5,
    "growth": 1e-6,
}
ROW = "2,1,32,1,0.12,0.1,0.01,0.02"


HEADER = ",".join(COLUMNS)


def text(facts=FACTS, columns=HEADER, rows=(ROW,)):
    return "\n".join([f"# {json.dumps(facts)}", columns, *rows]) + "\n"


def planted(gpus, batch, nodes=1):
    """30 ms and 1 ms a sample; several GPUs exchange for 20 ms; 5 ms to update."""
    samples, wait_s = batch // gpus, 0.02 if gpus > 1 else 0.0
    piece_s = 0.03 + 0.001 * samples
    step_s = piece_s + wait_s + 0.005
    facts = {"step_s": step_s, "piece_s": piece_s, "wait_s": wait_s, "error": 0.02}
    return StepRow(gpu="T4", gpus=gpus, nodes=nodes, samples=samples, **facts)


def a_profile(**facts):
    rows = tuple(planted(gpus, batch) for gpus in (1, 2, 4) for batch in (64, 256, 1024))
    return StoredProfile(**{**FACTS, "batches": (64, 32, 1024), "rows": rows, **facts})


def test_it_is_read_as_it_was_written_and_says_where_and_when():
    profile = a_profile()
    assert StoredProfile.from_text(profile.to_text(), "x") == profile
    head = json.loads(profile.to_text().splitlines()[0].removeprefix("#"))
    assert {"gpu", "torch", "script", "date", "device"} < set(head)


def test_a_file_of_before_there_were_devices_and_trends_is_read():
    older = {key: value for key, value in FACTS.items() if key not in ("device", "growth")}
    found = StoredProfile.from_text(text(older), "x")
    assert (found.device, found.growth) == ("", 0.0)


@pytest.mark.parametrize(
    ("wrong", "line", "named"),
    [
        ("gpus,nodes\n1,1\n", 1, "begins with 'gpus,nodes'"),
        (text({**FACTS, "gpu": 7}), 1, "gpu = 7 is not allowed; it must be a kind of GPU"),
        (text({key: FACTS[key] for key in FACTS if key != "date"}), 1, "has no date; it must be a date"),
        (text({**FACTS, "batches": [64, 128, 256]}), 1, r"batches = \[64, 128, 256\]"),
        (text({**FACTS, "batch": True}), 1, "batch = True"),
        (text({**FACTS, "noise": -1.0}), 1, "noise = -1.0"),
        (text(columns="gpus,nodes,samples"), 2, "has no column pieces"),
        (text(rows=(ROW, ROW.replace("0.12", "fast"))), 4, "step_s = 'fast' is not allowed; it must be a number"),
        (text(rows=(ROW.replace("32", "3.5"),)), 3, "samples = '3.5' is not allowed; it must be a whole number"),
        (text(rows=(ROW.replace("0.12", "-1"),)), 3, "step_s = -1.0"),
        (text(rows=("2,1",)), 3, "samples = None"),
        (text(rows=()), None, "has no row"),
    ],
)
def test_a_wrong_file_is_refused_by_line_field_value_and_next_step(wrong, line, named):
    with pytest.raises(BadInput, match=named) as caught:
        StoredProfile.from_text(wrong, "net.csv")
    assert caught.value.line == line
    assert caught.value.source == "net.csv"
    assert "sublet profile SCRIPT" in caught.value.hint


def test_the_speed_is_that_of_the_planted_rows_on_the_measured_kind_alone():
    speed = speed_from([a_profile(noise=None)])
    for gpus, batch in ((1, 64), (4, 1024), (2, 128)):
        step_s = planted(gpus, batch).step_s
        assert speed.rate_at("T4", (gpus,), batch) == pytest.approx(batch / step_s, rel=0.05)
    assert speed.rate("A100", (1,), 0.0) == 0.0
    assert speed.rate("", (1,), 0.0) == 0.0
    assert speed.rate("T4", (2,), 0.0) == speed.rate_at("T4", (2,), 64)  # without a noise the batch stays
    with pytest.raises(InvalidValue):
        speed_from([])


def test_with_a_noise_it_is_at_the_best_batch_in_samples_of_the_initial_one():
    speed = speed_from([a_profile()])
    worth = (812.5 + 64) / (812.5 + 1024)
    assert speed.rate_at("T4", (4,), 1024) == pytest.approx(1024 / planted(4, 1024).step_s * worth, rel=0.05)
    assert speed.rate("T4", (4,), 0.0) > speed.rate_at("T4", (4,), 64)


def test_a_micro_batch_that_was_kept_to_is_kept_to():
    cut = StepRow(gpu="T4", gpus=1, samples=16, pieces=4, step_s=0.25, piece_s=0.05)
    assert speed_from([a_profile(rows=(cut,))]).most_samples == 16
    assert speed_from([a_profile()]).most_samples == 0


def test_memory_is_a_column_of_the_file_and_one_without_it_is_read():
    profile = a_profile(memory={64: 5_000_000_000, 256: 17_000_000_000}, most_samples=256)
    written = profile.to_text()
    assert written.splitlines()[1] == f"{HEADER},memory_bytes"
    assert "1,1,64,1,0.099,0.094,0.0,0.02,5000000000" in written.splitlines()
    assert "1,1,1024,1,1.059,1.054,0.0,0.02,0" in written.splitlines()
    assert StoredProfile.from_text(written, "x") == profile
    older = StoredProfile.from_text(text(), "x")
    assert (older.memory, older.most_samples) == ({}, 0)
    assert StoredProfile.from_text(text(columns=f"{HEADER},memory_bytes", rows=(f"{ROW},",)), "x").memory == {}


@pytest.mark.parametrize("cell", ["much", "-1", "1.5"])
def test_memory_that_is_no_number_of_bytes_is_refused_with_its_line(cell):
    with pytest.raises(BadInput, match=f"line 3: memory_bytes.*{cell}"):
        StoredProfile.from_text(text(columns=f"{HEADER},memory_bytes", rows=(f"{ROW},{cell}",)), "x")


def test_what_fits_is_cut_into_as_many_pieces_as_the_run_before_took():
    speed = speed_from([a_profile(most_samples=256)])
    whole = speed_from([a_profile()])
    assert speed.most_samples == 256
    assert speed.rate_at("T4", (1,), 1024) < whole.rate_at("T4", (1,), 1024)
    assert speed.rate_at("T4", (1,), 256) == whole.rate_at("T4", (1,), 256)

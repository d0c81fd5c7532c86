"""Whatever is done to a file of jobs, it is refused or read correctly. A second, plain reader says what is correct."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sublet.domain.job import Job
from sublet.errors import BadInput
from sublet.perf.measured import MODELS
from sublet.sim.workloads import DEFAULT_SPEEDUP, Workload, workload_from_bytes
from sublet.sim.workloads.csvformat import COLUMNS, OPTIONAL_COLUMNS, csv_from_workload
from tests.rigs.sizes import examples

HEADER = [*COLUMNS, "min_gpus", "max_gpus", "restart_s", "weight"]
ROWS = [
    "j1,0,100,4,resnet50,32,10,team,V100,500,,1,8,30,1",
    "j2,10.5,2e3,1,,,,,,,low,,,,2.5",
    "j3,10.5,0.25,0.46,gpt,8,,x y,,,,,,,",
    'j4,70,86400,16,,,,"a,b",T4,1e6,gns,4,16,0,',
    "j5,71,12,2,LM,,,,,,,,2,,",
]
GOOD = "\n".join([",".join(HEADER), *ROWS, ""]).encode()
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
NASTY = [
    "1e10", "1e11",
    "", " ", "0", "-0", "-1", "1", "2", "64", "0.5", "8.0", "1e3", "1e308", "1e400", "5e-324", "-1e-9", "nan", "NaN",
    "inf", "-inf", "Infinity", "1_0", "0x10", "1,5", "1.2.3", " 7", "7 ", "٣", "½", "abc", "j1", "bert", '"', '"x',
    "a\nb", "\t", "100000", "1000001", "9" * 400, "None", "true", "-", "+3", ".5", "5.", "1e", "\ufeff1", "\x1b[0m",
]  # fmt: skip


def correct_reading(raw: bytes):
    """The jobs as plain tuples, or None if the bytes are not a valid file; slow and literal on purpose."""
    try:
        text = raw.decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    if "\0" in text or not rows:
        return None
    header = [name.strip() for name in rows[0]]
    body = [row for row in rows[1:] if row]
    known = {*COLUMNS, *OPTIONAL_COLUMNS}
    if not (set(header) <= known and len(set(header)) == len(header) and {"job_id", "submit_s", "gpus"} <= set(header)):
        return None
    if not body or not {"duration_s", "model"} & set(header) or any(len(row) != len(header) for row in body):
        return None
    jobs = [correct_job({**dict.fromkeys(known, ""), **dict(zip(header, row, strict=True))}) for row in body]
    if None in jobs or len({job[0] for job in jobs}) < len(jobs):
        return None
    return sorted(jobs, key=lambda job: (job[1], job[0]))


def correct_job(cell):
    number = {}
    for field in ("submit_s", "duration_s", "gpus", *_LOWEST):
        text = cell[field].strip()
        if cell[field] and not (NUMBER.fullmatch(text) and math.isfinite(float(text))):
            return None
        number[field] = float(text) if text else None
    for field, (lowest, itself) in _LOWEST.items():
        value = number[field]
        if value is not None and not (value >= lowest if itself else value > lowest):
            return None
    if any((number[field] or 0.0) > 1e10 for field in number if field.endswith("_s")):
        return None
    for field in ("batch_size", "min_gpus", "max_gpus"):
        if number[field] is not None and not number[field].is_integer():
            return None
    if any(text != text.strip() or not text.isprintable() for text in (cell[f] for f in _TEXTS)) or not cell["job_id"]:
        return None
    submit_s, duration_s, asked, deadline_s = (number[f] for f in ("submit_s", "duration_s", "gpus", "deadline_s"))
    if submit_s is None or submit_s < 0 or asked is None or not 0 < asked <= 1e6:
        return None
    if deadline_s is not None and deadline_s < submit_s:
        return None
    gpus = math.ceil(asked)
    by_profile = duration_s is None
    if by_profile and cell["model"] not in MODELS:
        return None
    least = int(number["min_gpus"] or 1)
    most = int(number["max_gpus"] or (max(64, gpus) if by_profile else max(gpus, least)))
    if not least <= gpus <= most <= 1e6:
        return None
    work = None
    if duration_s is not None:
        work = duration_s / (0.05 + 0.95 / gpus)
        if not (duration_s > 0 and math.isfinite(work)):
            return None
    restart_s = number["restart_s"] if number["restart_s"] is not None or by_profile else 0.0
    weight = 1.0 if number["weight"] is None else number["weight"]
    group = cell["group"] or cell["klass"]
    return (cell["job_id"], submit_s, work, gpus, least, most, restart_s, weight, deadline_s, cell["model"], group)


_TEXTS = ("job_id", "model", "group", "gpu", "klass")
_LOWEST = {  # (bound, whether it is allowed itself)
    "batch_size": (0, False),
    "steps": (0, False),
    "deadline_s": (0, True),
    "min_gpus": (1, True),
    "max_gpus": (1, True),
    "restart_s": (0, True),
    "weight": (0, False),
    "checkpoint_every_s": (0, False),
    "checkpoint_write_s": (0, True),
}


def assert_refused_or_read_correctly(raw: bytes) -> None:
    expected = correct_reading(raw)
    if expected is None:
        with pytest.raises(BadInput):
            workload_from_bytes(raw, "mutant.csv")
        return
    workload = workload_from_bytes(raw, "mutant.csv")
    assert len(workload) == len(expected)
    for job, (name, submit_s, work, gpus, least, most, restart_s, *rest) in zip(workload.jobs, expected, strict=True):
        assert (job.id, job.submit_s, job.gpus, job.min_gpus, job.max_gpus) == (name, submit_s, gpus, least, most)
        assert [job.weight, job.deadline_s, job.model, job.group] == rest
        if restart_s is not None:
            assert job.restart_s == restart_s
        if work is not None:
            assert math.isclose(job.work, work, rel_tol=1e-12, abs_tol=1e-300)


def test_both_readers_agree_on_the_good_file():
    assert correct_reading(GOOD) is not None
    assert_refused_or_read_correctly(GOOD)


byte_edits = st.lists(
    st.tuples(st.sampled_from(["set", "insert", "delete", "cut"]), st.integers(0, len(GOOD) - 1), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


def edited(raw: bytes, edits) -> bytes:
    for kind, position, value in edits:
        at = position % max(len(raw), 1)
        if kind == "cut":
            raw = raw[:at]
        else:
            new = b"" if kind == "delete" else bytes([value])
            raw = raw[:at] + new + raw[at + (kind != "insert") :]
    return raw


@settings(max_examples=examples(400))
@given(byte_edits)
def test_bytes_changed_anywhere_never_give_a_wrong_number(edits):
    assert_refused_or_read_correctly(edited(GOOD, edits))


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from(NASTY) | st.text(max_size=6)),
        min_size=1,
        max_size=3,
    )
)
@example([(1, 2, "1e308")])
@example([(2, 4, "bert"), (2, 2, "")])
def test_cells_replaced_by_anything_never_give_a_wrong_number(replacements):
    rows = list(csv.reader(io.StringIO(GOOD.decode(), newline="")))
    for row, column, text in replacements:
        rows[row % len(rows)][column % len(HEADER)] = text
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    assert_refused_or_read_correctly(out.getvalue().encode("utf-8", "surrogatepass"))


@settings(max_examples=examples(200))
@given(st.randoms(use_true_random=False))
def test_rows_and_fields_lost_doubled_or_shuffled_never_give_a_wrong_number(random):
    rows = [row.split(",") for row in GOOD.decode().splitlines()]
    for _ in range(random.randint(1, 3)):
        row = random.choice(rows)
        deed = random.randrange(5)
        if deed == 0 and row:
            row.pop(random.randrange(len(row)))
        elif deed == 1:
            row.insert(random.randint(0, len(row)), random.choice(NASTY))
        elif deed == 2:
            rows.append(list(row))
        elif deed == 3:
            random.shuffle(rows if random.random() < 0.5 else row)
        elif len(rows) > 1:
            rows.remove(row)
    assert_refused_or_read_correctly("\n".join(",".join(row) for row in rows).encode())


@settings(max_examples=examples(200))
@given(byte_edits)
def test_a_damaged_gzip_file_is_refused_or_whole(edits):
    packed = edited(gzip.compress(GOOD, mtime=0), edits)
    try:
        workload = workload_from_bytes(packed, "mutant.csv.gz")
    except BadInput:
        return
    assert workload.jobs == workload_from_bytes(GOOD, "good.csv").jobs


@settings(max_examples=examples(200))
@given(st.binary(max_size=400))
def test_junk_is_refused(junk):
    assert_refused_or_read_correctly(junk)


names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
seconds = st.floats(0.0, 1e9)


@st.composite
def jobs(draw, name):
    gpus = draw(st.integers(1, 300))
    submit_s = draw(seconds)
    return Job(
        id=name,
        submit_s=submit_s,
        work=draw(st.floats(1e-6, 1e10)),
        speed=DEFAULT_SPEEDUP,
        gpus=gpus,
        min_gpus=draw(st.integers(1, gpus)),
        max_gpus=draw(st.integers(gpus, 1000)),
        restart_s=draw(seconds),
        checkpoint_every_s=draw(st.floats(1e-3, 1e6) | st.just(math.inf)),
        checkpoint_write_s=draw(seconds),
        weight=draw(st.floats(1e-6, 1e6)),
        deadline_s=draw(st.none() | seconds.map(lambda slack_s: submit_s + slack_s)),
        model=draw(st.just("") | names),
        group=draw(st.just("") | names),
    )


@given(st.lists(names, min_size=1, max_size=6, unique=True).flatmap(lambda ids: st.tuples(*map(jobs, ids))))
def test_what_was_written_reads_back_as_the_same_jobs(drawn):
    workload = Workload(name="drawn", jobs=drawn)
    text = csv_from_workload(workload)
    again = workload_from_bytes(text.encode(), "drawn")
    for before, after in zip(workload.jobs, again.jobs, strict=True):
        assert math.isclose(before.work, after.work, rel_tol=1e-15)
        assert facts(before) == facts(after)
    assert workload_from_bytes(csv_from_workload(again).encode(), "drawn").jobs == again.jobs  # exact from then on


def facts(job):
    return [getattr(job, name) for name in Job.__dataclass_fields__ if name != "work"]

"""Whatever a job file holds, it is a job or an error of the tree; nothing else comes out."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import SubletError
from sublet.runtime.jobs.file import job_from_text
from sublet.runtime.jobs.spec import JobSpec, spec_from_json, spec_to_json
from tests.rigs.job_file import WHOLE
from tests.rigs.sizes import sized

HERE = Path(__file__).parent
SOUND = WHOLE.replace("torchrun --nproc-per-node 4 train.py --lr 0.1", "python test_job_files.py")
SOUND = SOUND.replace("2026-11-02T00:00Z", "2d")
SCRAPS = [
    "{",
    "}",
    "[",
    "]",
    ":",
    "- ",
    "&a ",
    "*a",
    "!!python/object:os.system ",
    "\t",
    "\n",
    "'",
    '"',
    "|",
    "..",
    "#",
]
SCRAPS += [
    "-1",
    "1e999",
    ".nan",
    "0",
    "null",
    "true",
    "999999999999999999999",
    "\0",
    "\x85",
    "é",
    "~",
    "<<",
    "2026-01-01",
]


def broken(rng: random.Random) -> str:
    """A sound file with one to six random injuries."""
    text = SOUND
    for _ in range(rng.randint(1, 6)):
        place, length = rng.randrange(len(text) + 1), rng.choice([0, 1, 1, 3, 20])
        kind = rng.randrange(4)
        scrap = rng.choice(SCRAPS) if kind else chr(rng.randrange(1, 0x2FF))
        text = text[:place] + (scrap if kind < 3 else "") + text[place + length :]
    return text


def outcome(text: str) -> JobSpec | SubletError:
    try:
        return job_from_text(text, source="job.yaml", base=HERE, environment={"TOKEN": "x" * 20, "FROM_ME": "y"})
    except SubletError as error:
        found = error
    assert found.exit_code == 2
    assert "x" * 20 not in str(found)
    return found


def test_broken_files_end_in_a_job_or_an_error_of_the_tree():
    rng = random.Random(7)
    found = [outcome(broken(rng)) for _ in range(sized(400, 1000))]
    refused = [each for each in found if isinstance(each, SubletError)]
    assert len(found) / 2 < len(refused) < len(found)  # most injuries hurt, and some are in a word that may be any word
    assert sum("line" in str(each) for each in refused) > 0.99 * len(refused)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    "name",
    "workdir",
    "num_nodes",
    "resources",
    "envs",
    "secrets",
    "elastic",
    "training",
    "budget",
    "deadline",
    "setup",
    "file_mounts",
)


@given(st.dictionaries(st.sampled_from((*KEYS, "checkpoint", "retry", "stop_duration", "weight", "run")), values))
def test_any_value_at_any_key_is_a_job_or_an_error_of_the_tree(facts):
    import yaml

    outcome(yaml.safe_dump({"run": "true", **facts}, allow_unicode=True))


@given(st.text(max_size=200))
def test_any_text_is_a_job_or_an_error_of_the_tree(text):
    outcome(text)


def test_a_job_survives_the_wire():
    spec = outcome(SOUND)
    assert isinstance(spec, JobSpec)
    assert spec_from_json(spec_to_json(spec, secrets=True)) == spec
    assert "x" * 20 not in str(spec_to_json(spec, secrets=False))


@given(st.dictionaries(st.sampled_from(list(JobSpec.__dataclass_fields__)), values))
def test_any_object_on_the_wire_is_a_job_or_an_error_of_the_tree(facts):
    try:
        spec_from_json({"name": "x", "argv": ["true"], "cwd": "/", **facts})
    except SubletError as error:
        code = error.exit_code
    else:
        code = 2
    assert code == 2

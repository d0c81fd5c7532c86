"""Which of SkyPilot's files can run on hosts of the box, and what the others need."""

from __future__ import annotations

import pytest

from sublet.runtime.jobs.bounds import MarketChoice
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.hosts.skypilot import why_not

PLAIN = {"name": "x", "argv": ("bash", "-c", "echo run"), "cwd": "/", "sdk": False}


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, ""),
        ({"mounts": {"/d": "s3://mine"}, "kept_mounts": ("/d",), "new_mounts": ("/d",)}, ""),
        ({"mounts": {"/d": "s3://theirs"}}, "a bucket of somebody's"),
        ({"mounts": {"/d": "gs://mine"}, "kept_mounts": ("/d",), "new_mounts": ("/d",)}, "a store that is not s3"),
        ({"accelerators": ("T4",)}, "a GPU"),
        ({"image": "ubuntu:20.04"}, "a container"),
        ({"market": MarketChoice.SPOT}, "a spot market, of which moto has none"),
        ({"setup": "pip install tqdm"}, "packages from an index"),
        ({"setup": "git clone https://x/y"}, "something from the network"),
        ({"argv": ("bash", "-c", "conda env list")}, "conda"),
        ({"argv": ("python3", "server.py")}, "an end: it serves"),
    ],
)
def test_a_file_runs_on_the_box_if_it_needs_nothing_that_its_hosts_have_not(facts, why):
    assert why_not(JobSpec(**(PLAIN | facts))) == why

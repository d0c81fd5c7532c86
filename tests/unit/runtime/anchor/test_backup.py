"""Backups of two controllers in one bucket: each has a place of its own, by what its instances are marked with."""

from __future__ import annotations

from sublet.runtime.anchor.backup import place_of
from sublet.runtime.providers.aws.build import server_of


def test_two_directories_that_name_one_bucket_do_not_write_over_each_other(tmp_path):
    servers = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        servers.append(server_of(tmp_path / name))
    one, other = (place_of("s3://bucket/anchor/", server) for server in servers)
    assert one == f"s3://bucket/anchor/{servers[0]}"
    assert one != other
    assert not other.startswith(f"{one}/")


def test_a_directory_that_moved_finds_its_own_again(tmp_path):
    (tmp_path / "here").mkdir()
    server = server_of(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert server_of(tmp_path / "there") == server

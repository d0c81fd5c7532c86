"""hosts.toml: what it may say, and what is told when it says something else."""

from __future__ import annotations

import pytest

from sublet.errors import BadInput, MissingData
from sublet.runtime.providers.ssh.build import _short
from sublet.runtime.providers.ssh.config import Host, config_path, offers_from, read_config


def written(tmp_path, text):
    path = tmp_path / "hosts.toml"
    path.write_text(text)
    return path


def test_machines_that_are_alike_are_one_offer():
    hosts = [
        Host(name="a", gpu="RTX-4090", slots=2),
        Host(name="b", gpu="RTX-4090", slots=2),
        Host(name="c", gpu="RTX-4090", slots=2, usd_per_h=0.15),
        Host(name="d", slots=8),
    ]
    offers = offers_from(hosts)
    assert [*offers] == ["ssh:RTX-4090x2", "ssh:RTX-4090x2-0.15usd", "ssh:cpux8"]
    assert [(offer.gpu, offer.gpus_per_node) for offer in offers.values()] == [
        ("RTX-4090", 2),
        ("RTX-4090", 2),
        ("cpu", 8),
    ]
    assert [offer.price.usd_per_h for offer in offers.values()] == [0.0, 0.15, 0.0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "at least one"),
        ("[[hosts]]\nname = 'a'\n[[hosts]]\nname = 'a'", "different for each machine"),
        ("colour = 'red'\n[[hosts]]\nname = 'a'", "no setting colour"),
        ("[[hosts]]\nname = 'a'\ngpuz = 2", "no setting hosts.gpuz"),
        ("[[hosts]]\nname = 'a'\nusd_per_h = -1.0", "usd_per_h"),
        ("controller = 'tcp:1.2.3.4:7070'\n[[hosts]]\nname = 'a'", "tls:host:port"),
        ("agents_port = 80\n[[hosts]]\nname = 'a'", "agents_port"),
        ("hosts = ['a']", "list of tables"),
        ("hosts = [", "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_told_with_the_file(text, told, tmp_path):
    with pytest.raises(BadInput, match=told) as error:
        read_config(written(tmp_path, text))
    assert "hosts.toml" in str(error.value)


def test_without_a_file_it_is_said_where_it_was_looked_for(tmp_path):
    with pytest.raises(MissingData, match=r"hosts\.toml"):
        read_config(config_path(tmp_path, environment={}))
    assert config_path(tmp_path, environment={"SUBLET_HOSTS": "/x"}).name == "x"
    assert config_path(tmp_path, "/y", environment={"SUBLET_HOSTS": "/x"}).name == "y"


@pytest.mark.parametrize(
    ("told", "short"),
    [("NVIDIA GeForce RTX 4090", "RTX-4090"), ("NVIDIA H200", "H200"), ("Tesla T4", "T4"), ("NVIDIA", "NVIDIA")],
)
def test_gpus_are_called_as_users_write_them(told, short):
    assert _short(told) == short

"""An account and nothing else: what is chosen for an anchor, on moto, and that a second time makes nothing twice."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from sublet.errors import BadInput, InvalidValue, MissingData, NoAccess
from sublet.market.catalogue import load_catalogue
from sublet.runtime.controller_host.ground import IMAGES, choose, region_from, renew_role, write_choices
from sublet.runtime.controller_host.instance import launch_request
from sublet.runtime.controller_host.record import HostRecord
from sublet.runtime.providers.aws.config import AwsConfig, read_config
from sublet.runtime.providers.aws.instances import packages, user_data
from sublet.runtime.providers.aws.offers import offers_from

REGION = "us-east-1"


@pytest.fixture
def account(monkeypatch):
    """An empty one; SSM is a stand-in: moto has no public images for deep learning."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    found = SimpleNamespace(parameters={IMAGES[1]: "ami-newer", IMAGES[2]: "ami-older"}, refuse=None)

    def get_parameters(Names):
        if found.refuse:
            raise ClientError({"Error": {"Code": found.refuse, "Message": "no"}}, "GetParameters")
        return {"Parameters": [{"Name": n, "Value": v} for n, v in found.parameters.items() if n in Names]}

    with mock_aws():
        clients = {}

        def make(service, region):
            if service == "ssm":
                return SimpleNamespace(get_parameters=get_parameters)
            if service == "pricing":
                raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "GetProducts")
            return clients.setdefault(service, boto3.client(service, region_name=region))

        found.make = make
        yield found


def test_all_that_an_anchor_needs_is_chosen_written_and_read_again(account, tmp_path):
    chosen = choose(account.make, REGION, "s1")
    write_choices(tmp_path / "aws.toml", chosen)
    config = read_config(tmp_path / "aws.toml")
    assert config.regions == (REGION,)
    assert config.image == "ami-newer"
    assert "g4dn.xlarge" in config.instance_types
    assert config.anchor_profile == "sublet-anchor-s1"
    text = (tmp_path / "aws.toml").read_text(encoding="utf-8")
    assert IMAGES[1] in text  # why this image
    assert "list price in us-east-1" in text  # nobody told what it costs
    assert tomllib.loads(text)["anchor_usd_per_h"] == 0.0208
    (group,) = account.make("ec2", REGION).describe_security_groups(GroupIds=list(config.security_groups))[
        "SecurityGroups"
    ]
    assert {rule["IpProtocol"] for rule in group["IpPermissions"]} == {"tcp", "-1"}
    (ssh,) = [rule for rule in group["IpPermissions"] if rule["IpProtocol"] == "tcp"]
    assert (ssh["FromPort"], ssh["ToPort"]) == (22, 22)
    profile = account.make("iam", REGION).get_instance_profile(InstanceProfileName=config.anchor_profile)
    assert [role["RoleName"] for role in profile["InstanceProfile"]["Roles"]] == ["sublet-anchor-s1"]


def test_a_second_time_finds_what_the_first_one_made(account):
    assert choose(account.make, REGION, "s1") == choose(account.make, REGION, "s1")
    named = account.make("ec2", REGION).describe_security_groups()["SecurityGroups"]
    assert [group["GroupName"] for group in named].count("sublet-s1") == 1


def test_in_an_only_network_that_is_not_the_default_nodes_are_told_where(account, tmp_path):
    """Without `subnets` AWS would look for a default network for them, and there is none."""
    client = account.make("ec2", REGION)
    for subnet in client.describe_subnets()["Subnets"]:
        client.delete_subnet(SubnetId=subnet["SubnetId"])
    for network in client.describe_vpcs()["Vpcs"]:
        client.delete_vpc(VpcId=network["VpcId"])
    network = client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    made = [
        client.create_subnet(VpcId=network, CidrBlock=f"10.9.{at}.0/24", AvailabilityZone=f"{REGION}{letter}")["Subnet"]
        for at, letter in enumerate("aab")
    ]
    write_choices(tmp_path / "aws.toml", choose(account.make, REGION, "s1"))
    config = read_config(tmp_path / "aws.toml")
    by_zone = {subnet["AvailabilityZoneId"]: subnet["SubnetId"] for subnet in made}
    assert config.subnets.keys() == by_zone.keys()
    assert set(config.subnets.values()) <= {subnet["SubnetId"] for subnet in made}
    assert config.anchor_subnet in config.subnets.values()
    zones = {offer.zone for offer in offers_from(config, load_catalogue())}
    assert zones
    assert zones <= by_zone.keys(), "no other zone has a subnet"


def test_a_network_in_a_zone_without_gpus_is_refused_before_anything_is_rented(account):
    client = account.make("ec2", REGION)
    without = replace(
        load_catalogue(), listings=[each for each in load_catalogue().listings if each.zone != "use1-az6"]
    )
    for subnet in client.describe_subnets()["Subnets"]:
        client.delete_subnet(SubnetId=subnet["SubnetId"])
    for network in client.describe_vpcs()["Vpcs"]:
        client.delete_vpc(VpcId=network["VpcId"])
    network = client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    made = client.create_subnet(VpcId=network, CidrBlock="10.9.0.0/24", AvailabilityZone=f"{REGION}a")["Subnet"]
    assert made["AvailabilityZoneId"] == "use1-az6"
    with pytest.raises(
        BadInput, match=r"has subnets in use1-az6, where none of g4dn.*\n  next: make a subnet in one of"
    ):
        choose(account.make, REGION, "s1", catalogue=without)


def test_in_the_default_network_each_zone_has_its_own(account):
    assert "subnets" not in {each.name for each in choose(account.make, REGION, "s1")}


def test_a_role_that_was_made_gets_the_rights_of_a_bucket_that_is_named_later(account):
    facts = {each.name: each.value for each in choose(account.make, REGION, "s1")}
    lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
    config = AwsConfig(**{**facts, **lists, "anchor_backup": "s3://bucket/a"})

    def rights():
        role = {"RoleName": "sublet-anchor-s1", "PolicyName": "sublet"}
        found = account.make("iam", REGION).get_role_policy(**role)["PolicyDocument"]
        return {each["Sid"] for each in found["Statement"]}

    before = rights()
    assert {"RenewTheAnchor", "EndOnlyOurs"} <= before
    assert not before & {"LaunchTheAnchor", "LeadTheAnchor"}  # which are the laptop's
    renew_role(account.make, config, "s1")
    assert rights() - before == {"ListItsBackup", "KeepItsBackup"}


def test_who_sends_credentials_needs_no_role(account):
    chosen = choose(account.make, REGION, "s1", credentials_sent=True)
    assert "anchor_profile" not in {each.name for each in chosen}
    assert account.make("iam", REGION).list_roles()["Roles"] == []


def test_what_cannot_be_had_is_told_with_the_next_step(account):
    account.parameters = {}
    with pytest.raises(MissingData, match=r"aws\.toml"):
        choose(account.make, REGION, "s1")
    account.refuse = "AccessDeniedException"
    with pytest.raises(NoAccess):
        choose(account.make, REGION, "s1")
    with pytest.raises(BadInput, match="none of"):
        choose(account.make, "mars-north-1", "s1")


def test_without_a_default_network_the_only_one_is_taken_and_none_is_told(account):
    client = account.make("ec2", REGION)
    for subnet in client.describe_subnets()["Subnets"]:
        client.delete_subnet(SubnetId=subnet["SubnetId"])
    for network in client.describe_vpcs()["Vpcs"]:
        client.delete_vpc(VpcId=network["VpcId"])
    with pytest.raises(BadInput, match="create-default-vpc"):
        choose(account.make, REGION, "s1")
    network = client.create_vpc(CidrBlock="10.0.0.0/24")["Vpc"]["VpcId"]
    made = client.create_subnet(VpcId=network, CidrBlock="10.0.0.0/24", AvailabilityZone=f"{REGION}a")
    subnet = made["Subnet"]["SubnetId"]
    chosen = {each.name: each for each in choose(account.make, REGION, "s1")}
    assert chosen["anchor_subnet"].value == subnet
    assert "only network" in chosen["anchor_subnet"].why


def test_the_region_is_that_of_the_users_own_tools():
    assert region_from("eu-west-1", {}) == "eu-west-1"
    assert region_from("eu-west-1", {"AWS_REGION": "us-west-2", "AWS_DEFAULT_REGION": "x"}) == "us-west-2"
    with pytest.raises(BadInput, match="aws configure"):
        region_from(None, {})


def test_several_packages_reach_pip_as_several_words():
    assert packages("boto3 'torch>=2' numpy") == "boto3 'torch>=2' numpy"
    assert packages("") == ""
    with pytest.raises(InvalidValue, match="install"):
        packages("boto3 'torch")
    config = AwsConfig(regions=(REGION,), instance_types=("g4dn.xlarge",), image="ami-1", controller="tcp:h:1")
    assert " a b >" in user_data("n1", "t", replace(config, install="a b"))
    facts = {"region": REGION, "token": "t", "nonce": "n", "expires_unix": 1, "kind": "t3.small", "user": "u"}
    record = HostRecord(**facts, python="python3")
    request = launch_request(record, replace(config, anchor_install="a b"), server="s", home="h", key="k")
    assert " a b >" in request["UserData"]

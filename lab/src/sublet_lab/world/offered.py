"""The cloud of a story, its offers, and the facts that agents of its nodes are given."""

from __future__ import annotations

from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.runtime.agent.agent import AgentFacts
from sublet_lab.world.cloud import Boot, Cloud
from sublet_lab.world.ec2 import Ec2Cloud
from sublet_lab.world.heap import World
from sublet_lab.world.local import LocalCloud
from sublet_lab.world.metadata import SERVICE
from sublet_lab.world.plain import PlainCloud
from sublet_lab.world.ray import RayCloud
from sublet_lab.world.rigged import ADDRESS
from sublet_lab.world.story import Story

USD_PER_H = {Market.SPOT: 0.5, Market.ON_DEMAND: 1.5}


def cloud_of(story: Story, world: World, boot: Boot) -> Cloud:
    """Its nodes are booted by `boot`."""
    if story.cloud == "aws":
        return Ec2Cloud(world, _offers(story), boot)
    if story.cloud == "local":
        return LocalCloud(world, _offers(story), boot)
    if story.cloud == "ray":
        return RayCloud(world, _offers(story), boot)
    plain = PlainCloud(world, _offers(story), boot, keeps_records=story.keeps_records)
    plain.release_s = story.release_s
    return plain


def _offers(story: Story) -> list[Offer]:
    wind_down_s = 10.0 + story.lease_s / 3 + story.release_s
    return [
        Offer(
            id=str(market),
            gpu="T4",
            gpus_per_node=story.gpus_per_node,
            market=market,
            price=Price.from_usd_per_h(usd),
            boot_s=10.0,
            cap=Price.from_usd_per_h(usd * story.cap),
            pool=f"T4x{story.gpus_per_node}" if story.mixed else "",
            wind_down_s=wind_down_s,
        )
        for market, usd in USD_PER_H.items()
    ]


def agent_facts(story: Story, node_id: str, token: str, boot_s: float) -> AgentFacts:
    """Facts that the agent of a node is started with."""
    return AgentFacts(
        node_id=node_id,
        token=token,
        address=ADDRESS,
        notice_file=f"/notices/{node_id}",
        gpus=tuple(map(str, range(story.gpus_per_node))),
        lease_s=story.lease_s + 30.0,
        boot_s=boot_s,
        metadata_url=SERVICE if story.told_inside else "",
        lease_file=f"/run/{node_id}.lease",
    )

"""DeepVM's claim by the model of live jobs: the cost of an hour of work with many checkpoint servers, one, or none.

Without a checkpoint server, and at the same risk of losing all work, nodes are on demand (DeepVM's own comparison), or
their checkpoints go straight to a bucket (which DeepVM does not consider).
"""

from __future__ import annotations

import numpy as np

from sublet.advise.checkpointing import Checkpoints, Fleets, anchors_for, outages
from sublet_lab.studies.deepvm.facts import AWS
from sublet_lab.studies.study import Check, StudyTable, at_most

NODES = 8
HAZARDS_PER_H = (0.05, 0.2, 0.5, 1.0, 2.0)  # per node; spot records that we have are between 0.2 and 1.1
STATES_GB = (0.2, 2.0, 20.0, 60.0)
WAYS = ("tiering", "single anchor", "bucket", "on demand")
PUBLISHED_GB = 0.2  # two checkpoints of 100 MB, as the released planner has it


def usd_per_h_of_work(hazard_per_h: float, state_gb: float) -> dict[str, float]:
    """The rent of eight g4dn.xlarge: all three outlive the loss of all spot nodes, so the risk is the same."""
    node = next(each for each in AWS if each.name.startswith("g4dn"))
    job = Checkpoints(state_bytes=1e9 * state_gb)
    steady_R = np.array([0.0, 1.0, 0.0])
    whole = np.ones((3, NODES))
    found = outages(
        Fleets(
            keepers=["anchors", "nodes", "storage"],
            nodes_N=np.arange(1.0, NODES + 1.0),
            steady_RN=np.minimum(steady_R[:, None], np.arange(1.0, NODES + 1.0)),
            hazard_per_h_R=np.full(3, hazard_per_h),
            notice_s_R=np.zeros(3),
            at_once_RN=whole,
            all_RN=0.0 * whole,
            wait_s_RN=0.0 * whole,
            wait_square_RN=0.0 * whole,
            spread_R=np.zeros(3, dtype=bool),
            gbit_per_s_R=np.full(3, node.gbit_per_s),
            rate_RN=whole * np.arange(1.0, NODES + 1.0),
        ),
        job,
    )
    anchor, count = anchors_for(job, NODES)
    beside_R = np.array([count * anchor.usd_per_h, 0.0, 0.0])
    rent_R = steady_R * node.on_demand_usd_per_h + (NODES - steady_R) * node.spot_usd_per_h + beside_R
    usd = [*(rent_R * found.slowdown_RN[:, -1]).tolist(), NODES * node.on_demand_usd_per_h]
    return dict(zip(WAYS, usd, strict=True))


def modelled() -> tuple[StudyTable, list[Check]]:
    """All states and hazards, with the cheapest arm; the claim is checked for the checkpoints that DeepVM has."""
    rows, claimed = [], []
    for state_gb in STATES_GB:
        for hazard_per_h in HAZARDS_PER_H:
            usd = usd_per_h_of_work(hazard_per_h, state_gb)
            claimed += [usd] if state_gb == PUBLISHED_GB else []
            cheapest = min(usd, key=lambda way: usd[way])
            rows.append([f"{state_gb:g}", f"{hazard_per_h:g}", *(f"{usd[way]:.3f}" for way in WAYS), cheapest])
    columns = ["state, GB", "losses per node-hour", *(f"{way}, USD" for way in WAYS), "cheapest"]
    table = StudyTable(title="An hour of work on eight nodes, by the model", columns=columns, rows=rows, texts=0)
    checks = [
        at_most(
            f"model, {PUBLISHED_GB:g} GB: tiering by {other}, worst of {len(HAZARDS_PER_H)} hazards",
            max(usd["tiering"] / usd[other] for usd in claimed),
            1.0,
        )
        for other in ("single anchor", "on demand")
    ]
    return table, checks

"""DeepVM's architecture level as the integer program that the paper describes, solved by HiGHS.

    maximise    sum FLOPP_v n K_v(n) (tier_vwn + single_vn)
    one pick    sum tier_vwn + sum single_vn = 1
    money       sum spot_v n tier_vwn + sum od_w anchors_w + sum (od_v + (n - 1) spot_v) single_vn <= willingness
    networks    sum_vn (n + 1) / senders_vw tier_vwn <= anchors_w <= most_w      for all w

`tier_vwn` says that n spot nodes of type v train beside servers of type w, `single_vn` that n - 1 do beside one on
demand. K is a logistic, so every number of nodes is a variable of its own; only the numbers of servers are counted. The
row of networks is the published n / m < senders in whole numbers, and types of servers whose memory is too small for a
checkpoint have no variables.

>>> from sublet_lab.studies.deepvm.planner import ANCHORS, AWS
>>> found = best_cluster(3.0, AWS, ANCHORS)
>>> found.trainer.name, found.nodes, found.anchors
('g4dn.xlarge', 17, 1)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sublet.solve.arrays import Floats
from sublet.solve.mip.highs import new_solver
from sublet_lab.studies.deepvm.facts import senders_per_anchor
from sublet_lab.studies.deepvm.planner import USUAL, Anchor, Cluster, Keeping, Trainer, units

# X columns, R rows, N entries that are not 0
SCALE = 1e4  # the largest coefficient of the objective: HiGHS's tolerances are absolute
ROWWISE, MINIMISE, INTEGER = 2, 1, 1  # how HiGHS numbers them


def best_cluster(
    usd_per_h: float, trainers: Sequence[Trainer], anchors: Sequence[Anchor], keeping: Keeping = USUAL
) -> Cluster | None:
    """The cluster with the greatest `FLOPP x nodes x K(nodes)`; None if nothing is affordable.

    Cost: branch and bound on a variable for each affordable (type, server, nodes), some hundredths of a second. Among
    equals it finds any.
    """
    cap = units(usd_per_h)
    held = [anchor for anchor in anchors if keeping.fits(anchor)]
    choices = [choice for trainer in trainers for anchor in (*held, None) for choice in _choices(trainer, anchor, cap)]
    if not choices:
        return None
    gain_X = np.array([choice.trainer.flopp * choice.nodes * choice.factor for choice in choices] + [0.0] * len(held))
    most_X = np.array([1.0] * len(choices) + [float(anchor.most) for anchor in held])
    solution_X = _solve_program(-SCALE * gain_X / gain_X.max(), most_X, *_rows(cap, choices, held))
    if solution_X is None:
        return None
    trainer, anchor, nodes, *_ = choices[int(solution_X[: len(choices)].argmax())]
    if anchor is None:
        return Cluster(trainer=trainer, nodes=nodes)
    # HiGHS may keep more servers than needed if there is money for them: they change nothing in the objective.
    needed = nodes // senders_per_anchor(trainer, anchor) + 1
    return Cluster(trainer=trainer, nodes=nodes, anchor=anchor, anchors=needed)


class _Choice(NamedTuple):
    """One variable; `rent` is that of the nodes that train, `anchors` the share of servers that they fill."""

    trainer: Trainer
    anchor: Anchor | None
    nodes: int
    factor: float
    rent: int
    anchors: float


def _choices(trainer: Trainer, anchor: Anchor | None, cap: int) -> Iterator[_Choice]:
    spot = units(trainer.spot_usd_per_h)
    first, fixed = (1, 0) if anchor else (2, units(trainer.on_demand_usd_per_h) - spot)
    senders = senders_per_anchor(trainer, anchor) if anchor else math.inf
    for nodes in range(first, min(trainer.most, (cap - fixed) // spot) + 1):
        yield _Choice(trainer, anchor, nodes, trainer.factor(nodes), fixed + nodes * spot, (nodes + 1) / senders)


def _rows(cap: int, choices: Sequence[_Choice], anchors: Sequence[Anchor]) -> tuple[Floats, Floats, Floats]:
    """The matrix, and the least and the greatest that each row may be."""
    count = len(choices)
    matrix = np.zeros((2 + len(anchors), count + len(anchors)))
    matrix[0, :count] = 1.0
    matrix[1, :count] = [choice.rent for choice in choices]
    filled = np.array([choice.anchors for choice in choices])
    for row, anchor in enumerate(anchors):
        matrix[1, count + row] = units(anchor.usd_per_h)
        matrix[2 + row, :count] = np.where([choice.anchor is anchor for choice in choices], filled, 0.0)
        matrix[2 + row, count + row] = -1.0
    low = np.array([1.0, *[-np.inf] * (1 + len(anchors))])
    return matrix, low, np.array([1.0, float(cap), *[0.0] * len(anchors)])


def _solve_program(cost_X: Floats, most_X: Floats, matrix_RX: Floats, low_R: Floats, high_R: Floats) -> Floats | None:
    """The best whole numbers from 0 to `most_X`; None if the rows cannot be kept."""
    import highspy

    row_N, column_N = np.nonzero(matrix_RX)
    solver = new_solver()
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.passModel(
        len(cost_X),
        len(matrix_RX),
        len(row_N),
        ROWWISE,
        MINIMISE,
        0.0,
        cost_X,
        np.zeros(len(cost_X)),
        most_X,
        low_R,
        high_R,
        np.searchsorted(row_N, np.arange(len(matrix_RX))).astype(np.int32),
        column_N.astype(np.int32),
        matrix_RX[row_N, column_N],
        np.full(len(cost_X), INTEGER, dtype=np.int32),
    )
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.array(solver.getSolution().col_value)

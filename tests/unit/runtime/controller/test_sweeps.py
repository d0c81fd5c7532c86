"""Offers of which all is taken at once, again and again, rest; one sweep, or one node, is no reason to."""

from __future__ import annotations

from sublet.runtime.controller.nodes.leases import AGAIN_S, FIRST_REST_S, LONGEST_REST_S, TOGETHER_S, MassReclaims


def sweep(sweeps, now_s, nodes=("n1", "n2")):
    """All of them within a second; what the last one says."""
    for number, node_id in enumerate(nodes):
        found = sweeps.take("spot", node_id, now_s + number / len(nodes), held=nodes)
    return found


def test_after_the_first_sweep_more_is_asked_for_at_once():
    sweeps = MassReclaims()
    assert sweep(sweeps, 100.0) == (1, 0.0)
    assert sweeps.rest_s("spot", 101.0) == 0.0


def test_each_further_sweep_in_a_row_lets_the_offer_rest_twice_as_long_up_to_a_bound():
    sweeps, now_s, rests = MassReclaims(), 0.0, []
    for _ in range(8):
        rests.append(sweep(sweeps, now_s)[1])
        now_s += rests[-1] + 100.0
    assert rests == [0.0, 60.0, 120.0, 240.0, 480.0, 960.0, 960.0, 960.0]
    assert (FIRST_REST_S, LONGEST_REST_S) == (60.0, 960.0)


def test_it_rests_until_its_time_is_over_and_others_do_not():
    sweeps = MassReclaims()
    sweep(sweeps, 0.0)
    sweep(sweeps, 100.0)
    assert sweeps.rest_s("spot", 120.5) == 40.0
    assert sweeps.rest_s("spot", 160.5) == 0.0
    assert sweeps.rest_s("on-demand", 120.5) == 0.0


def test_a_sweep_long_after_the_last_is_the_first_again():
    sweeps = MassReclaims()
    sweep(sweeps, 0.0)
    assert sweep(sweeps, AGAIN_S - 1.0)[0] == 2
    rested_s = AGAIN_S + FIRST_REST_S
    assert sweep(sweeps, rested_s + AGAIN_S + 1.0) == (1, 0.0)


def test_one_node_after_the_other_or_some_of_many_is_no_sweep():
    sweeps = MassReclaims()
    assert sweeps.take("spot", "n1", 0.0, held=["n1"]) == (0, 0.0)
    assert sweeps.take("spot", "n2", TOGETHER_S + 1.0, held=["n2"]) == (0, 0.0)
    assert sweep(sweeps, 100.0, nodes=("n3", "n4"))[0] == 1
    some = MassReclaims()
    assert some.take("spot", "n1", 0.0, held=["n1", "n2", "n3"]) == (0, 0.0)
    assert some.take("spot", "n2", 0.1, held=["n1", "n2", "n3"]) == (0, 0.0)

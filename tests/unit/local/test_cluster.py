"""The node of a new pod in a local run."""

from __future__ import annotations

from understudy_local.cluster import node_for

NODES = ("node-0", "node-1", "node-2")


def test_a_pod_that_is_created_for_an_index_gets_its_own_node() -> None:
    assert node_for(NODES, "node-0", {}) == "node-0"


def test_a_replacement_gets_a_free_node() -> None:
    used = {"node-0": False, "node-2": False}
    assert node_for(NODES, None, used) == "node-1"
    assert node_for(NODES, "node-0", used) == "node-1"


def test_while_the_end_of_a_lost_pod_has_not_been_noticed_its_replacement_waits() -> None:
    # given a pod that the coordinator has lost, but whose end this process has not detected yet
    used = {"node-0": False, "node-1": False, "node-2": False}
    # then its replacement does not share a node with an active member
    assert node_for(NODES, None, used) is None


def test_a_replacement_shares_the_node_of_a_pod_that_is_ending() -> None:
    assert node_for(NODES, None, {"node-0": False, "node-1": True, "node-2": False}) == "node-1"

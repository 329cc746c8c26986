"""The address plan: every node has its own addresses, and none overlap."""

from __future__ import annotations

import ipaddress

import pytest

from tests.cluster.network import CONTROL_PLANE_IP, MOST_NODES, POD_NETWORK, SERVICE_NETWORK, NodeAddresses, all_nodes


def test_a_node_has_its_addresses():
    node = NodeAddresses(3)
    assert (node.name, node.ip, node.pod_subnet, node.pod_gateway) == (
        "node3",
        "10.246.0.13",
        "10.244.3.0/24",
        "10.244.3.1",
    )
    assert node.mac == "02:00:0a:f6:00:0d"


def test_no_two_nodes_share_an_address():
    nodes = all_nodes()
    for attribute in ("name", "ip", "mac", "pod_subnet", "pod_gateway", "port"):
        assert len({getattr(node, attribute) for node in nodes}) == MOST_NODES
    assert CONTROL_PLANE_IP not in {node.ip for node in nodes}


def test_pod_subnets_lie_in_the_pod_network_and_off_the_services():
    pods, services = ipaddress.IPv4Network(POD_NETWORK), ipaddress.IPv4Network(SERVICE_NETWORK)
    for node in all_nodes():
        subnet = ipaddress.IPv4Network(node.pod_subnet)
        assert subnet.subnet_of(pods)
        assert not subnet.overlaps(services)
        assert ipaddress.IPv4Address(node.pod_gateway) in subnet


def test_interface_names_fit_the_kernel():
    assert all(len(node.port) <= 15 for node in all_nodes())


@pytest.mark.parametrize("index", [0, -1, MOST_NODES + 1])
def test_a_node_beyond_the_plan_is_refused(index):
    with pytest.raises(ValueError, match="room for nodes"):
        NodeAddresses(index)

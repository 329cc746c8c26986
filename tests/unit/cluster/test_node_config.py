"""The configuration of the nodes' programs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from tests.cluster.control_plane import NODE_MONITOR_GRACE_S
from tests.cluster.network import NodeAddresses
from tests.cluster.node_config import (
    CONTAINERD_SOCKET,
    LEASE_S,
    PAUSE_IMAGE,
    STATUS_S,
    containerd_config,
    kubelet_config,
    network_config,
    proxy_config,
)

NODE = NodeAddresses(2)


def test_a_kubelet_answers_only_clients_that_the_authority_knows():
    config = json.loads(kubelet_config(NODE, Path("/pki/k.crt"), Path("/pki/k.key"), Path("/pki/ca.crt")))
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authentication"]["x509"] == {"clientCAFile": "/pki/ca.crt"}
    assert config["authorization"] == {"mode": "Webhook"}
    assert config["address"] == "10.246.0.12"


def test_a_nodes_pods_are_in_its_own_control_groups():
    config = json.loads(kubelet_config(NODE, Path("c"), Path("k"), Path("a")))
    assert config["cgroupRoot"] == "/understudy/node2"


def test_several_heartbeats_fit_into_the_grace_period():
    assert STATUS_S * 3 < NODE_MONITOR_GRACE_S
    assert LEASE_S <= NODE_MONITOR_GRACE_S  # a lease is renewed every quarter of its time


def test_pods_are_bridged_routed_and_not_masqueraded():
    bridge, portmap = json.loads(network_config(NODE))["plugins"]
    assert bridge["ipMasq"] is False
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.2.0/24", "gateway": "10.244.2.1"}]]
    assert portmap["type"] == "portmap"


def test_containerd_uses_only_the_nodes_folders():
    config = tomllib.loads(containerd_config(Path("/bin-x"), Path("/net.d"), "/usr/sbin/runc", "overlayfs"))
    assert config["root"] == "/var/lib/containerd"
    assert config["grpc"]["address"] == CONTAINERD_SOCKET
    plugins = config["plugins"]
    assert plugins["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": PAUSE_IMAGE}
    assert plugins["io.containerd.cri.v1.images"]["snapshotter"] == "overlayfs"
    assert plugins["io.containerd.nri.v1.nri"]["disable"]  # its socket would be the machine's own
    assert plugins["io.containerd.cri.v1.runtime"]["cni"] == {"bin_dirs": ["/bin-x"], "conf_dir": "/net.d"}


def test_kube_proxy_knows_its_node():
    config = json.loads(proxy_config(NODE, Path("/k")))
    assert config["hostnameOverride"] == "node2"
    assert config["healthzBindAddress"] == "10.246.0.12:10256"

"""The configuration of a node's programs: pure functions of its addresses.

The kubelet's and kube-proxy's files are JSON, which is YAML; containerd's is TOML, CNI's
JSON. Paths are those on the node: its own folders are mounted over /var/lib/kubelet,
/var/lib/containerd, /var/lib/cni, /run/containerd and /var/log (see node.py).
"""

from __future__ import annotations

import json
from pathlib import Path

from .network import DNS_SERVICE_IP, POD_NETWORK, NodeAddresses

PAUSE_IMAGE = "localhost/understudy-pause:1"
PROXY_HEALTH_PORT = 10256
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
# A heartbeat every 4 s: the control plane marks a node as not Ready after NODE_MONITOR_GRACE_S without one.
LEASE_S = 16
STATUS_S = 4


def kubelet_config(node: NodeAddresses, certificate: Path, key: Path, authority: Path) -> str:
    """The KubeletConfiguration of a node."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.ip,
            "port": 10250,
            "readOnlyPort": 0,
            "healthzBindAddress": "127.0.0.1",
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "clusterDNS": [DNS_SERVICE_IP],
            "clusterDomain": "cluster.local",
            "maxPods": 200,
            # The whole node is one subtree of control groups, which contains its pods.
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/understudy/{node.name}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "nodeStatusUpdateFrequency": f"{STATUS_S}s",
            "nodeLeaseDurationSeconds": LEASE_S,
            "syncFrequency": "10s",
            "serializeImagePulls": False,
            # Neither images nor pods are ever removed to free space: this is a workstation, not a node.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
        },
        indent=1,
    )


def proxy_config(node: NodeAddresses, kubeconfig: Path) -> str:
    """The KubeProxyConfiguration of a node."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": POD_NETWORK,
            "hostnameOverride": node.name,
            "healthzBindAddress": f"{node.ip}:{PROXY_HEALTH_PORT}",
            "metricsBindAddress": "127.0.0.1:10249",
            "iptables": {"minSyncPeriod": "200ms", "syncPeriod": "1h0m0s"},
            # A node cannot, and need not, change the machine's own conntrack limits.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        },
        indent=1,
    )


def network_config(node: NodeAddresses) -> str:
    """The CNI network of a node: a bridge, routed and not masqueraded, so pods see each other's addresses."""
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipMasq": False,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": node.pod_subnet, "gateway": node.pod_gateway}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        },
        indent=1,
    )


def containerd_config(binaries: Path, network_folder: Path, runc: str, snapshotter: str) -> str:
    """containerd's configuration. Its folders are the defaults, which are the node's own."""
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "{CONTAINERD_SOCKET}"

# Its socket would be the machine's /var/run/nri/nri.sock: nodes that start together fight for it.
[plugins."io.containerd.nri.v1.nri"]
  disable = true

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE (a machine inside a sandbox) a lower oom_score_adj is refused.
  restrict_oom_score_adj = true
  # Mount points under the state folder, not in the host's /run/netns: a power-off leaves none there.
  netns_mounts_under_state_dir = true

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{binaries}"]
  conf_dir = "{network_folder}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    BinaryName = "{runc}"
"""

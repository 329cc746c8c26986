"""The cluster's name server: CoreDNS on the host, which pods find through Service kube-dns, as in other clusters.

It is no pod, so it outlives every node. It resolves only the cluster's names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .api import SERVER
from .binaries import NAME_SERVER
from .certificates import Authority, Certificate
from .cgroups import machine
from .commands import Progress
from .network import CONTROL_PLANE_IP, DNS_SERVICE_IP
from .paths import Paths
from .processes import Component, Processes

PORT = 22353  # the host may have a name server of its own on 53
CLIENT = Certificate("coredns", "system:coredns", "system:masters")
CONFIGURATION = """\
.:{port} {{
    bind {address}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


@dataclass(frozen=True)
class NameServer:
    """Its process, and the objects through which pods reach it."""

    paths: Paths
    processes: Processes

    def ensure(self, progress: Progress) -> None:
        """Ensure that it runs. Does not wait until it answers, because pods retry."""
        authority = Authority(self.paths.pki)
        kubeconfig = authority.kubeconfig(self.paths.pki / "coredns.kubeconfig", SERVER, CLIENT)
        file = self.paths.state / "Corefile"
        text = CONFIGURATION.format(port=PORT, address=CONTROL_PLANE_IP, kubeconfig=kubeconfig)
        file.write_text(text)
        argv: list[str | Path] = [self.paths.name_server / NAME_SERVER, "-conf", file]
        group = machine("control-plane").child(NAME_SERVER)
        if self.processes.ensure(Component(NAME_SERVER, group, argv, text + kubeconfig.read_text())):
            progress.report(f"{NAME_SERVER} started")


def name_server_objects() -> str:
    """The objects through which pods reach it: a Service without a selector, and its one address. For kubectl apply."""
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    protocols = ("UDP", "TCP")
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": DNS_SERVICE_IP,
            "ports": [{"name": name.lower(), "port": 53, "targetPort": PORT, "protocol": name} for name in protocols],
        },
    }
    behind = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata | {"labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "ports": [{"name": name.lower(), "port": PORT, "protocol": name} for name in protocols],
        "endpoints": [{"addresses": [CONTROL_PLANE_IP], "conditions": {"ready": True}}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [service, behind]})

"""A few reads of the cluster's API server, without starting kubectl.

kubectl takes a tenth of a second of CPU to say that a node is Ready; this takes a
millisecond, which counts where something is polled. Everything else goes through
kubectl.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from .certificates import Authority, Certificate
from .failures import ClusterDown
from .network import CONTROL_PLANE_IP

PORT = 6443
SERVER = f"https://{CONTROL_PLANE_IP}:{PORT}"
# The control plane's own taints on a node that is not there; pods go there again when they are removed.
UNUSABLE = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
ADMIN = Certificate("admin", "understudy-admin", "system:masters")


@dataclass(frozen=True)
class Api:
    """The API server, as the administrator whose certificate is in `pki`."""

    pki: Path

    def get(self, path: str, *, timeout_s: float = 5) -> Any:
        """The object at `path`, decoded. Raises ClusterDown when the server gives none."""
        status, body = self._request(path, timeout_s)
        if status != http.client.OK:
            raise ClusterDown(f"GET {path} was answered with {status}: {body.decode(errors='replace')[:300]}")
        return json.loads(body)

    def ready(self) -> bool:
        """Whether the server answers, and says that it is ready."""
        try:
            return self._request("/readyz", 2)[0] == http.client.OK
        except ClusterDown:
            return False

    def node_conditions(self) -> dict[str, str]:
        """Of each node that the server knows: the status of its Ready condition."""
        found: dict[str, str] = {}
        for node in self.get("/api/v1/nodes")["items"]:
            conditions = {item["type"]: item["status"] for item in node["status"].get("conditions", [])}
            found[node["metadata"]["name"]] = conditions.get("Ready", "Unknown")
        return found

    def node_is_ready(self, name: str, *, booted_at: float = 0, heard_since: float = 0) -> bool:
        """Whether a node is Ready and takes pods, and what says so is news.

        Both times are seconds of the epoch. `booted_at`: the status must be of after it
        (posting one is the first thing that a new kubelet does). `heard_since`: the
        lease must have been renewed after it.
        """
        node = self.get(f"/api/v1/nodes/{name}")
        taints = {taint["key"] for taint in node["spec"].get("taints", [])}
        ready = [item for item in node["status"].get("conditions", []) if item["type"] == "Ready"]
        if taints & UNUSABLE or not ready or ready[0]["status"] != "True":
            return False
        if _epoch(ready[0]["lastHeartbeatTime"]) < int(booted_at):
            return False
        if not heard_since:
            return True
        lease = self.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}")
        return _epoch(lease["spec"]["renewTime"]) >= heard_since

    def _request(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        authority = Authority(self.pki)
        if not authority.certificate.exists():
            raise ClusterDown("there is no cluster yet; run `cluster up`")
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(*map(str, authority.issue(ADMIN)))
        connection = http.client.HTTPSConnection(CONTROL_PLANE_IP, PORT, timeout=timeout_s, context=context)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise ClusterDown(f"the API server at {SERVER} gives no answer: {error}; run `cluster up`") from error


def _epoch(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()

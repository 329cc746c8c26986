"""Reads from the cluster's API server, without starting kubectl.

A kubectl process takes a tenth of a second of CPU; a request on an open connection takes a millisecond. That matters
for tests that poll. Writes use kubectl.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

from .certificates import Authority, Certificate
from .failures import ClusterDown
from .network import CONTROL_PLANE_IP

PORT = 6443
SERVER = f"https://{CONTROL_PLANE_IP}:{PORT}"
# The control plane's own taints on a node that is gone; the scheduler uses the node again when they are removed.
UNUSABLE = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
ADMIN = Certificate("admin", "understudy-admin", "system:masters")


class _Connection(http.client.HTTPSConnection):
    """Closes itself when its thread, or its Api, is gone, because neither can close it then."""

    def __del__(self) -> None:
        self.close()


class Api:
    """The API server, as the administrator whose certificate is in `pki`. Each thread has a connection of its own."""

    def __init__(self, pki: Path) -> None:
        self._pki = pki
        self._of_thread = threading.local()

    def get(self, path: str, *, timeout_s: float = 5) -> Any:
        """The decoded object at `path`. Raises ClusterDown when the server returns another status than 200."""
        return json.loads(self.read(path, timeout_s=timeout_s))

    def find(self, path: str, *, timeout_s: float = 5) -> Any | None:
        """The decoded object at `path`; None if there is none. Raises ClusterDown for any other status."""
        status, body = self._request(path, timeout_s)
        return None if status == http.client.NOT_FOUND else json.loads(_checked(path, status, body))

    def read(self, path: str, *, timeout_s: float = 5) -> bytes:
        """The response's body, such as a container's log. Raises ClusterDown for another status than 200."""
        return _checked(path, *self._request(path, timeout_s))

    def ready(self) -> bool:
        """Whether the server answers, and reports that it is ready."""
        try:
            return self._request("/readyz", 2)[0] == http.client.OK
        except ClusterDown:
            return False

    def node_conditions(self) -> dict[str, str]:
        """The status of the Ready condition of each node that the server knows."""
        found: dict[str, str] = {}
        for node in self.get("/api/v1/nodes")["items"]:
            conditions = {item["type"]: item["status"] for item in node["status"].get("conditions", [])}
            found[node["metadata"]["name"]] = conditions.get("Ready", "Unknown")
        return found

    def node_is_ready(self, name: str, *, booted_at: float = 0, heartbeat_since: float = 0) -> bool:
        """Whether a node is Ready and schedulable according to recent reports.

        Both times are seconds of the epoch. `booted_at`: the status must be newer (a new
        kubelet posts one first). `heartbeat_since`: the lease must have been renewed after it.
        """
        node = self.get(f"/api/v1/nodes/{name}")
        taints = {taint["key"] for taint in node["spec"].get("taints", [])}
        ready = [item for item in node["status"].get("conditions", []) if item["type"] == "Ready"]
        if taints & UNUSABLE or not ready or ready[0]["status"] != "True":
            return False
        if _epoch(ready[0]["lastHeartbeatTime"]) < int(booted_at):
            return False
        if not heartbeat_since:
            return True
        lease = self.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}")
        return _epoch(lease["spec"]["renewTime"]) >= heartbeat_since

    def _request(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        """The status and the body."""
        if (kept := self._open_connection(timeout_s)) is not None:
            with contextlib.suppress(OSError, http.client.HTTPException):  # the server has closed it since its last use
                return _exchange(kept, path)
        try:
            return _exchange(self._connect(timeout_s), path)
        except (OSError, http.client.HTTPException) as error:
            raise ClusterDown(f"the API server at {SERVER} does not respond: {error}; run `cluster up`") from error

    def _open_connection(self, timeout_s: float) -> http.client.HTTPSConnection | None:
        connection: http.client.HTTPSConnection | None = getattr(self._of_thread, "connection", None)
        if connection is None or connection.sock is None:
            return None
        connection.sock.settimeout(timeout_s)
        return connection

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        authority = Authority(self._pki)
        if not authority.certificate.exists():
            raise ClusterDown("there is no cluster yet; run `cluster up`")
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(*map(str, authority.issue(ADMIN)))
        connection = _Connection(CONTROL_PLANE_IP, PORT, timeout=timeout_s, context=context)
        self._of_thread.connection = connection
        return connection


def _exchange(connection: http.client.HTTPSConnection, path: str) -> tuple[int, bytes]:
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except BaseException:  # a part of a response may be left in it
        connection.close()
        raise


def _checked(path: str, status: int, body: bytes) -> bytes:
    if status != http.client.OK:
        raise ClusterDown(f"GET {path}: status {status}: {body.decode(errors='replace')[:300]}")
    return body


def _epoch(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()

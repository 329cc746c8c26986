"""Scheduler, kubelets and garbage collector: how pods proceed once the API server has them."""

from __future__ import annotations

import asyncio
import base64
import copy
import random
from contextlib import suppress
from dataclasses import dataclass, field

from tests.simulation_operator.api_server import ApiServer, Raw
from understudy_operator.runtime.api import ApiError
from understudy_operator.runtime.kept_fields import secrets_of
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.membership import Close


@dataclass
class Cluster:
    server: ApiServer
    rng: random.Random
    nodes: list[str]
    down: set[str] = field(default_factory=set)
    adopted: dict[str, str] = field(default_factory=dict)  # claimed spares that got the order: pod uid -> job uid
    keys: dict[str, str] = field(default_factory=dict)  # the pods' keys, by their uids
    room: int | None = None  # pods that fit on a node; None: any number
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def start(self) -> None:
        self.server.watchers.append(self._on_change)
        for node in self.nodes:
            self._set_node(node, ready=True)

    def running(self, job_uid: str) -> list[Raw]:
        """The pods whose containers all run, by name."""
        pods = self.server.of("pods", **{names.LABEL_JOB_UID: job_uid})
        return sorted(filter(self.runs, pods), key=lambda pod: str(pod["metadata"]["name"]))

    def runs(self, pod: Raw) -> bool:
        at_work = pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        return at_work and pod["spec"]["nodeName"] not in self.down

    # Faults

    def power_off(self, node: str) -> None:
        self.down.add(node)
        self._after(0.5, 3.0, lambda: self._set_node(node, ready=node not in self.down))

    def power_on(self, node: str) -> None:
        """Its containers have ended with it."""
        self.down.discard(node)
        for pod in self.server.of("pods"):
            if pod["spec"].get("nodeName") == node:
                self.end(pod, None)
                self._after(0.1, 1.0, lambda pod=pod: self._kubelet_ends(pod))
        self._after(0.5, 2.0, lambda: self._set_node(node, ready=node not in self.down))

    def end(self, pod: Raw, close: Close | None) -> None:
        """All its containers end: with that close, or because they have failed."""
        raw = self._current(pod)
        if raw is None or raw.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return
        ended = {"exitCode": 1 if close is None else 0, "message": "" if close is None else wire.encode(close)}
        raw["status"] = {
            "phase": "Failed" if close is None else "Succeeded",
            "initContainerStatuses": [{"name": names.SIDECAR_CONTAINER, "state": {"terminated": ended}}],
        }
        self.server.put("pods", raw)

    def restart_sidecar(self, pod: Raw) -> None:
        """Its container is a new one: the kubelet reports it."""
        raw = self._current(pod)
        if raw is not None and self.runs(raw):
            (sidecar,) = raw["status"]["initContainerStatuses"]
            sidecar["restartCount"] = sidecar.get("restartCount", 0) + 1
            self.server.put("pods", raw)

    # Consequences

    def _on_change(self, plural: str, kind: str, raw: Raw) -> None:
        if plural == "pods" and kind == "ADDED":
            self._after(0.02, 1.0, lambda: self._schedule(raw))
        elif plural == "pods" and kind == "MODIFIED" and "deletionTimestamp" in raw["metadata"]:
            self._after(0.2, 2.0, lambda: self._kubelet_ends(raw))
        elif plural in ("trainingjobs", "hotsparepools") and kind == "DELETED":
            self._after(0.5, 4.0, lambda: self._collect(raw["metadata"]["uid"]))

    def _schedule(self, pod: Raw) -> None:
        raw = self._current(pod)
        if raw is None or raw["spec"].get("nodeName"):
            return
        up = [node for node in self.nodes if node not in self.down and self._fits(raw, node)]
        if not up:
            if self.room is not None:
                self._find_no_room(raw)
            self._after(1.0, 2.0, lambda: self._schedule(pod))
            return
        raw["spec"]["nodeName"] = self.rng.choice(up)
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.server.timestamp()}
        raw["status"] = {**raw.get("status", {}), "conditions": [scheduled]}
        self.server.put("pods", raw)
        self._after(0.1, 1.5, lambda: self._run(pod))

    def _run(self, pod: Raw) -> None:
        raw = self._current(pod)
        if raw is None or raw.get("status", {}).get("phase") or "deletionTimestamp" in raw["metadata"]:
            return
        if raw["spec"]["nodeName"] in self.down:
            return
        if not self._mount(raw):
            self._after(1.0, 2.0, lambda: self._run(pod))
            return
        running = {"name": names.SIDECAR_CONTAINER, "started": True, "state": {"running": {}}}
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "podIP": "10.1.0.1", "initContainerStatuses": [running], "conditions": [ready]}
        raw["status"] = status
        self.server.put("pods", raw)

    def _mount(self, pod: Raw) -> bool:
        """Whether all Secrets of its volumes exist. A pod has its key from the moment that it starts."""
        mounted = (name for volume in pod["spec"].get("volumes", ()) for name in secrets_of(volume))
        for name in mounted:
            secret = self.server.objects.get(("secrets", pod["metadata"]["namespace"], name))
            if secret is None:
                return False
            if names.KEY_FILE in secret["data"]:
                key = base64.b64decode(secret["data"][names.KEY_FILE]).decode()
                self.keys[pod["metadata"]["uid"]] = key
        return True

    def _kubelet_ends(self, pod: Raw) -> None:
        raw = self._current(pod)
        if raw is None or "deletionTimestamp" not in raw["metadata"] or raw["spec"].get("nodeName") in self.down:
            return
        if raw["metadata"].get("finalizers"):
            raw["status"] = {**raw.get("status", {}), "phase": "Failed"}  # all containers have ended
        self.server.remove_or_terminate("pods", raw)

    def _fits(self, pod: Raw, node: str) -> bool:
        wanted = str(pod["spec"].get("affinity", {}))
        if "'In'" in wanted and f"['{node}']" not in wanted:
            return False
        present = [other for other in self.server.of("pods") if other["spec"].get("nodeName") == node]
        at_work = [other for other in present if other.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
        return self.room is None or len(at_work) < self.room

    def _find_no_room(self, raw: Raw) -> None:
        values = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        raw["status"] = {**raw.get("status", {}), "conditions": [values]}
        self.server.put("pods", raw)

    def _collect(self, job_uid: str) -> None:
        for plural in ("pods", "services", "secrets", "jobs", "recoveries"):
            for raw in self.server.of(plural, **{names.LABEL_JOB_UID: job_uid}):
                if raw["metadata"].get("finalizers"):
                    path = f"/api/v1/namespaces/{raw['metadata']['namespace']}/{plural}/{raw['metadata']['name']}"
                    with suppress(ApiError):  # a policy may forbid it; the collector retries
                        self.server.handle("DELETE", path, {}, {})
                else:
                    self.server.remove(plural, raw)
        if self.server.of("pods", **{names.LABEL_JOB_UID: job_uid}):
            self._after(1.0, 2.0, lambda: self._collect(job_uid))

    def collect_orphans(self) -> None:
        """The collector also deletes objects that were created for a deleted job."""
        jobs = {job["metadata"]["uid"] for kind in ("trainingjobs", "hotsparepools") for job in self.server.of(kind)}
        owners = {raw["metadata"]["labels"][names.LABEL_JOB_UID] for raw in self.server.of("pods", names.LABEL_JOB_UID)}
        owners |= {
            raw["metadata"]["labels"][names.LABEL_JOB_UID]
            for plural in ("services", "secrets", "jobs", "recoveries")
            for raw in self.server.of(plural, names.LABEL_JOB_UID)
        }
        for uid in sorted(owners - jobs):
            self._collect(uid)

    def _set_node(self, node: str, *, ready: bool) -> None:
        condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
        known = self.server.objects.get(("nodes", "", node), {"metadata": {"name": node}})
        result = known.get("status", {}).get("conditions", [{}])[0].get("status")
        since = known["status"]["conditions"][0]["lastTransitionTime"] if result == condition["status"] else None
        condition["lastTransitionTime"] = since or self.server.timestamp()
        self.server.put("nodes", {**known, "status": {"conditions": [condition]}})

    def _current(self, pod: Raw) -> Raw | None:
        metadata = pod["metadata"]
        raw = self.server.objects.get(("pods", metadata["namespace"], metadata["name"]))
        same = raw is not None and raw["metadata"]["uid"] == metadata["uid"]
        return copy.deepcopy(raw) if same else None

    def _after(self, least_s: float, most_s: float, do: object) -> None:
        assert callable(do)
        self._loop.call_later(self.rng.uniform(least_s, most_s), do)

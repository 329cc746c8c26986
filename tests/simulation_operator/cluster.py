"""Scheduler, kubelets and garbage collector: what becomes of pods once the API server has them."""

from __future__ import annotations

import asyncio
import copy
import random
from dataclasses import dataclass, field

from tests.simulation_operator.api_server import ApiServer, Raw
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.membership import Close


@dataclass
class Cluster:
    server: ApiServer
    rng: random.Random
    nodes: list[str]
    down: set[str] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def start(self) -> None:
        self.server.watchers.append(self._told)
        for node in self.nodes:
            self._set_node(node, ready=True)

    def running(self, job_uid: str) -> list[Raw]:
        """Pods of which every container runs, by name."""
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
        """What ran on it has ended with it."""
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

    # What follows by itself

    def _told(self, plural: str, kind: str, raw: Raw) -> None:
        if plural == "pods" and kind == "ADDED":
            self._after(0.02, 1.0, lambda: self._schedule(raw))
        elif plural == "pods" and kind == "MODIFIED" and "deletionTimestamp" in raw["metadata"]:
            self._after(0.2, 2.0, lambda: self._kubelet_ends(raw))
        elif plural == "trainingjobs" and kind == "DELETED":
            self._after(0.5, 4.0, lambda: self._collect(raw["metadata"]["uid"]))

    def _schedule(self, pod: Raw) -> None:
        raw = self._current(pod)
        up = [node for node in self.nodes if node not in self.down]
        if raw is None or raw["spec"].get("nodeName"):
            return
        if not up:
            self._after(1.0, 2.0, lambda: self._schedule(pod))
            return
        raw["spec"]["nodeName"] = self.rng.choice(up)
        self.server.put("pods", raw)
        self._after(0.1, 1.5, lambda: self._run(pod))

    def _run(self, pod: Raw) -> None:
        raw = self._current(pod)
        if raw is None or raw.get("status", {}).get("phase") or "deletionTimestamp" in raw["metadata"]:
            return
        if raw["spec"]["nodeName"] in self.down:
            return
        running = {"name": names.SIDECAR_CONTAINER, "started": True, "state": {"running": {}}}
        raw["status"] = {"phase": "Running", "podIP": "10.1.0.1", "initContainerStatuses": [running]}
        self.server.put("pods", raw)

    def _kubelet_ends(self, pod: Raw) -> None:
        raw = self._current(pod)
        if raw is not None and "deletionTimestamp" in raw["metadata"] and raw["spec"]["nodeName"] not in self.down:
            self.server.remove("pods", raw)

    def _collect(self, job_uid: str) -> None:
        for plural in ("pods", "services", "secrets"):
            for raw in self.server.of(plural, **{names.LABEL_JOB_UID: job_uid}):
                self.server.remove(plural, raw)
        if self.server.of("pods", **{names.LABEL_JOB_UID: job_uid}):
            self._after(1.0, 2.0, lambda: self._collect(job_uid))

    def collect_orphans(self) -> None:
        """What was made for a job that is gone already: the collector finds that out, too."""
        jobs = {job["metadata"]["uid"] for job in self.server.of("trainingjobs")}
        owners = {raw["metadata"]["labels"][names.LABEL_JOB_UID] for raw in self.server.of("pods", names.LABEL_JOB_UID)}
        owners |= {
            raw["metadata"]["labels"][names.LABEL_JOB_UID]
            for plural in ("services", "secrets")
            for raw in self.server.of(plural, names.LABEL_JOB_UID)
        }
        for uid in sorted(owners - jobs):
            self._collect(uid)

    def _set_node(self, node: str, *, ready: bool) -> None:
        condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
        known = self.server.objects.get(("nodes", "", node), {"metadata": {"name": node}})
        told = known.get("status", {}).get("conditions", [{}])[0].get("status")
        since = known["status"]["conditions"][0]["lastTransitionTime"] if told == condition["status"] else None
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

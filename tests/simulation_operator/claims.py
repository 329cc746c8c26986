"""Invariants of claims at each moment, whatever fails; and kills between two writes of a claim.

- A pool's pod is claimed by one job at a time, and a job's pod replaces a spare that has ended.
- A job has no more open claims than it lacked pods a moment ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from tests.simulation_operator.api_server import Raw
from tests.simulation_operator.rules import Rule, Wrong
from understudy_protocol import pod as names

if TYPE_CHECKING:
    from tests.simulation_operator.client import Process
    from tests.simulation_operator.world import World

#: How long a lack of a job counts: the operator's knowledge may be this old.
LATELY_S = 10.0


class ClaimWatch:
    def __init__(self, world: World) -> None:
        self._world = world
        self._claimants: dict[str, str] = {}  # pod uid -> job uid
        self._taken: dict[str, str] = {}  # uid of a pool's pod -> job uid
        self._lacked: dict[str, deque[tuple[float, int]]] = {}  # by job uid
        self.claims = 0  # all claims of the run

    def tick(self) -> None:
        for uid, training in self._world.trainings.items():
            with_ranks = sum(map(training.has_rank, training.rank_holders.values()))
            seen = self._lacked.setdefault(uid, deque())
            seen.append((self._world.loop.time(), training.actives - with_ranks))
            while self._world.loop.time() - seen[0][0] > LATELY_S:
                seen.popleft()

    def on_pod(self, kind: str, pod: Raw, writer: Process | None) -> None:
        """A pod has changed; writer: the replica whose request changed it."""
        self.tick()  # the next pod may have the lost rank before time passes
        labels = pod["metadata"].get("labels", {})
        stepped = False
        annotations = pod["metadata"].get("annotations", {})
        if names.ANNOTATION_WARM_POOL_UID in annotations:
            stepped = self._warm(kind, pod, names.ANNOTATION_ADOPTED_AT in annotations)
        elif names.LABEL_POOL in labels:
            stepped = self._pool_pod(kind, pod, labels.get(names.LABEL_CLAIMED_BY_UID, ""))
        elif names.LABEL_POOL_UID in labels and kind == "ADDED":
            self._takes_place(pod)
            stepped = True
        if stepped and writer is not None:
            self._perhaps_kill(writer)

    def _pool_pod(self, kind: str, pod: Raw, claimant: str) -> bool:
        """Whether this change is a step of a claim."""
        metadata = pod["metadata"]
        before = "" if kind == "ADDED" else self._claimants.get(metadata["uid"], "")
        self._claimants[metadata["uid"]] = claimant
        if before and claimant and before != claimant:
            self._world.violate(
                Rule.A_SPARE_HAS_ONE_CLAIMANT, f"{metadata['name']} is claimed by {before}, and by {claimant}"
            )
        if claimant and not before:
            self.claims += 1
            self._world.log(f"{claimant} claims 1 of the pool: {metadata['name']}")
            self._is_needed(claimant)
        return before != claimant or bool(claimant and "deletionTimestamp" in metadata)

    def _warm(self, kind: str, pod: Raw, adopted: bool) -> bool:
        """Whether a pool's pod has become a job's pod, or is recorded as adopted, or is deleted unadopted."""
        metadata = pod["metadata"]
        uid, job_uid = metadata["uid"], metadata["labels"][names.LABEL_JOB_UID]
        before = self._claimants.get(uid, "")
        if before and before != job_uid:
            self._world.violate(
                Rule.A_SPARE_HAS_ONE_CLAIMANT, f"{metadata['name']} is claimed by {before}, and by {job_uid}"
            )
        if not before:
            self._claimants[uid] = job_uid
            self.claims += 1
            self._world.log(f"{job_uid} claims 1 of the pool, Warm: {metadata['name']}")
            self._is_needed(job_uid)
        first, self._taken[uid] = adopted and uid not in self._taken, job_uid
        if not adopted:
            del self._taken[uid]
        return not before or first or (kind == "MODIFIED" and "deletionTimestamp" in metadata)

    def _is_needed(self, job_uid: str) -> None:
        self.tick()
        done = self._taken.keys() | self._world.cluster.adopted.keys()
        under_way = [uid for uid, claimant in self._claimants.items() if claimant == job_uid and uid not in done]
        dead = {node["metadata"]["name"] for node in self._world.server.of("nodes") if not _is_ready(node)}
        present = {pod["metadata"]["uid"] for pod in self._world.server.of("pods") if not _was_given_up(pod, dead)}
        lacked = max((count for _, count in self._lacked.get(job_uid, ())), default=len(under_way))
        if self._world.has_lease and len(present.intersection(under_way)) > lacked:
            self._world.violate(
                Rule.A_JOB_CLAIMS_WHAT_IT_LACKS, f"{job_uid} lacks {lacked} pods, and claims {len(under_way)}"
            )

    def _takes_place(self, pod: Raw) -> None:
        metadata = pod["metadata"]
        uid, job_uid = (
            metadata["annotations"][names.ANNOTATION_CLAIMED_POD_UID],
            metadata["labels"][names.LABEL_JOB_UID],
        )
        if self._taken.setdefault(uid, job_uid) != job_uid:
            self._world.violate(
                Rule.A_PLACE_IS_TAKEN_ONCE, f"{metadata['name']} takes a place that {self._taken[uid]} has"
            )
        spares = [other for other in self._world.server.of("pods") if other["metadata"]["uid"] == uid]
        for spare in spares:
            if spare.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                self._world.violate(
                    Rule.A_PLACE_IS_TAKEN_AFTER_ITS_END,
                    f"{metadata['name']} takes the place of {spare['metadata']['name']}, which runs",
                )

    def _perhaps_kill(self, writer: Process) -> None:
        if self._world.kill_at_claim:
            self._world.kill_at_claim -= 1
            if not self._world.kill_at_claim and not writer.dead:
                self._world.loop.call_soon(self._world.replace_replica, writer)


def find_pool_violations(world: World) -> Iterator[Wrong]:
    """When the world is stable."""
    pools = {raw["metadata"]["uid"]: raw for raw in world.server.of("hotsparepools")}
    for uid, pool in pools.items():
        name, wanted = pool["metadata"]["name"], pool["spec"]["replicas"]
        spares = world.server.of("pods", **{names.LABEL_JOB_UID: uid})
        running = [spare for spare in spares if world.cluster.runs(spare)]
        alive = [spare for spare in spares if spare.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
        full = world.cluster.room is not None and any(_has_no_room(spare) for spare in alive)
        if not full and (len(running), len(alive)) != (wanted, wanted):
            yield Wrong(Rule.A_POOL_IS_FULL, f"pool {name} wants {wanted} spares: {len(running)} run of {len(alive)}")
        status = pool.get("status", {})
        result = (status.get("desired"), status.get("ready"), status.get("available"))
        if result != (wanted, len(running), len(running)):
            yield Wrong(
                Rule.A_POOL_REPORTS_ITS_SPARES,
                f"pool {name} has {len(running)} of {wanted} spares, and reports {result}",
            )
        templates = {spare["metadata"]["labels"][names.LABEL_TEMPLATE_HASH] for spare in alive}
        if not full and len(templates) > 1:
            yield Wrong(Rule.A_POOL_HAS_ONE_TEMPLATE, f"pool {name} has spares of {len(templates)} templates")
    for pod in world.server.of("pods"):
        metadata = pod["metadata"]
        if metadata.get("finalizers") or names.LABEL_CLAIMED_BY_UID in metadata["labels"]:
            yield Wrong(Rule.NO_CLAIM_IS_LEFT, f"{metadata['name']} is claimed still")
        result = metadata.get("annotations", {})
        ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if names.ANNOTATION_WARM_POOL_UID in result and names.ANNOTATION_ADOPTED_AT not in result and not ended:
            yield Wrong(
                Rule.AN_ADOPTED_SPARE_KNOWS_ITS_JOB, f"{metadata['name']} was claimed Warm, and does not know its job"
            )


def _has_no_room(pod: Raw) -> bool:
    return any(entry.get("reason") == "Unschedulable" for entry in pod.get("status", {}).get("conditions", ()))


def _was_given_up(pod: Raw, dead: Collection[str]) -> bool:
    """A spare that was claimed Warm, and that ends or is on one of these nodes: the claim was useless."""
    metadata = pod["metadata"]
    is_done = pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in metadata
    gone = is_done or pod["spec"].get("nodeName") in dead
    return gone and names.ANNOTATION_WARM_POOL_UID in metadata.get("annotations", {})


def _is_ready(node: Raw) -> bool:
    return any((x["type"], x["status"]) == ("Ready", "True") for x in node.get("status", {}).get("conditions", ()))

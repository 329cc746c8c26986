"""A raw Job of batch/v1 -> a ChildJob."""

from understudy_operator.observe.read import read_number_label
from understudy_operator.observe.store import Raw
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.cluster_objects import ChildJob
from understudy_operator.plan.facts.queue import QUEUE
from understudy_operator.plan.manifests.child_jobs import FINGERPRINT
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol import pod as names

_ENDS = ("Complete", "Failed")


def read_child(raw: Raw) -> ChildJob:
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
    labels = metadata.get("labels", {})
    parallelism = int(spec.get("parallelism", 1))
    true = {x["type"]: x for x in status.get("conditions", ()) if x["status"] == "True"}
    end: Raw = next((true[kind] for kind in _ENDS if kind in true), {})
    uncounted: Raw = status.get("uncountedTerminatedPods") or {}
    return ChildJob(
        uid=metadata["uid"],
        name=metadata["name"],
        group=labels.get(keys.REPLICATED_JOB, ""),
        index=read_number_label(labels, keys.JOB_INDEX),
        attempt=read_number_label(labels, keys.RESTART_ATTEMPT),
        job_attempt=read_number_label(labels, keys.JOB_RESTART_ATTEMPT),
        desired_pods=min(parallelism, int(spec.get("completions", parallelism))),
        deleting="deletionTimestamp" in metadata,
        suspended=bool(spec.get("suspend", False)),
        created_at=parse_time(metadata["creationTimestamp"]),
        started_at=parse_time(status["startTime"]) if status.get("startTime") else 0.0,
        active=int(status.get("active", 0)),
        terminating=int(status.get("terminating", 0)),
        ready=int(status.get("ready", 0)),
        # The Job controller counts a pod once it has removed its finalizer. Until then it lists the pod's uid.
        succeeded=int(status.get("succeeded", 0)) + len(uncounted.get("succeeded") or ()),
        failed=int(status.get("failed", 0)) + len(uncounted.get("failed") or ()),
        is_failing="FailureTarget" in true and not end,
        ended=bool(end),
        is_complete=end.get("type") == "Complete",
        reason=end.get("reason", ""),
        message=end.get("message", ""),
        ended_at=parse_time(end["lastTransitionTime"]) if end.get("lastTransitionTime") else 0.0,
        template_hash=metadata.get("annotations", {}).get(names.ANNOTATION_SPEC_HASH, ""),
        written_fields=metadata.get("annotations", {}).get(names.ANNOTATION_WRITTEN_FIELDS, ""),
        fingerprint=metadata.get("annotations", {}).get(FINGERPRINT, ""),
        queue=labels.get(QUEUE, ""),
        template=spec.get("template", {}),
        backoff_limit=spec.get("backoffLimit"),
        replaces_ended_pods_only=spec.get("podReplacementPolicy") == "Failed",
    )

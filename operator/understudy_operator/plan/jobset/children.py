"""Which child Jobs to create, delete, suspend and resume.

Rules:
- Each attempt uses the same names, so a Job of the previous attempt has to be deleted before the next one is created.
  BlockingRecreate waits until all Jobs and pods of the previous attempt are gone.
- A running Job is never changed. It is deleted if the operator missed a suspension (missed_changes.py).
- A Job that is resumed gets the mutable fields of a suspended Job (labels, annotations, nodeSelector, tolerations,
  schedulingGates of its pods) from the current spec, and keeps the entries that others have added there. A Job that
  differs in any other field, or in its own queue, labels or annotations, is recreated.
- After the end of the job, the operator deletes Jobs that have not ended.
- A server of `rollouts` whose Job is complete has exited with code 0, for example because its pod was evicted. No pod
  would replace it, so the operator recreates the Job, unless the success policy waits for it.
- Only Kueue suspends and resumes a Job in its queue, and would resume one that the operator has suspended. So while the
  TrainingJob is suspended such a Job does not exist. Kueue puts Jobs without a queue into the queue `default` of their
  namespace, if there is one. So a suspended TrainingJob whose Jobs have got a queue creates none until it is resumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from understudy_operator.plan.facts.cluster_objects import ChildJob
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.queue import read_queue
from understudy_operator.plan.facts.spec import ReplicatedJob, RestartStrategy
from understudy_operator.plan.intents import CreateJob, DeleteJob, Event, JobIntent, PatchJob
from understudy_operator.plan.jobset.missed_changes import MISSED_CHANGE, outdated_jobs
from understudy_operator.plan.jobset.startup import startup
from understudy_operator.plan.jobset.views import group_counts, is_current, is_of_previous_attempt
from understudy_operator.plan.manifests.child_jobs import (
    FINGERPRINT,
    MUTABLE_METADATA,
    Written,
    job_manifest,
    read_written,
)
from understudy_operator.plan.manifests.metadata import job_name
from understudy_operator.plan.manifests.podspec import claim_name
from understudy_operator.plan.times.reconcile_clock import is_due

#: A server that exits with 0 at each start is started this often. Meanwhile the job may end.
EXITED_S = 10.0
EXITED = "its server has exited with code 0, and the training still needs it"


def plan_children(observed: Observed, sidecar_image: str, now: float) -> tuple[JobIntent, ...]:
    job = observed.job
    if job.deleting or job.injected is not None or not (job.spec.children or observed.children):
        return ()
    current = [child for child in observed.children if is_current(observed, child)]
    others = [x for x in observed.children if not is_current(observed, x) and not x.deleting]
    changes: list[JobIntent] = [_delete(child, _deletion_reason(observed, child)) for child in others]
    if job.terminal:
        running = [child for child in current if not child.ended and not child.deleting]
        return (*changes, *(_delete(child, "the job has ended") for child in running))
    if job.spec.suspend:
        changes += [
            _suspend(child) for child in current if not (child.ended or child.deleting) and _must_suspend(child)
        ]
    changes += [_delete(child, MISSED_CHANGE) for child in outdated_jobs(observed)]
    changes += [_delete(child, EXITED) for child in _exited_servers(observed, now)]
    return (*changes, *_create(observed, sidecar_image), *_resume(observed, current, sidecar_image))


def exited_server_events(observed: Observed, now: float) -> Iterator[Event]:
    """One for each server that the operator starts again."""
    for child in _exited_servers(observed, now):
        message = f"Job {child.name} is created again: {EXITED}"
        yield Event("Warning", "ServerRestarted", message, key=f"exit of {child.uid}")


def _exited_servers(observed: Observed, now: float) -> list[ChildJob]:
    rollouts, targets = observed.job.spec.rollouts, observed.job.spec.success.targets
    if rollouts is None or not targets or observed.close is not None or observed.job.terminal:
        return []
    servers = {name for name in rollouts.groups if name not in targets}
    complete = [x for x in observed.children if x.group in servers and x.is_complete and not x.deleting]
    return [child for child in complete if is_current(observed, child) and is_due(child.ended_at + EXITED_S, now)]


def _deletion_reason(observed: Observed, child: ChildJob) -> str:
    return (
        "it is from before the restart" if is_of_previous_attempt(observed, child) else "the spec no longer contains it"
    )


def waits_for_previous_attempt(observed: Observed) -> bool:
    """Whether all Jobs and pods of the previous attempt have to be gone before any of this one is created."""
    policy = observed.job.spec.failure
    if policy is None or policy.strategy is not RestartStrategy.BLOCKING_RECREATE:
        return False
    has_previous_jobs = any(child.attempt < observed.job.restarts for child in observed.children)
    return has_previous_jobs or any(not pod.is_done for pod in observed.previous_pods)


def waits_for_claims(observed: Observed) -> bool:
    """Whether a claim that is deleted with the job does not exist yet. Pods would mount a claim of its name, even if
    another object owns it. A job that has started needs its pods, also if somebody has changed the owner since.
    """
    if observed.job.status.start_time is not None:
        return False
    own_claims = (claim for claim in observed.job.spec.claims if not claim.retained)
    return any(claim_name(observed.job, claim.name) not in observed.claims for claim in own_claims)


def _create(observed: Observed, sidecar_image: str) -> Iterator[CreateJob]:
    if waits_for_previous_attempt(observed) or waits_for_claims(observed) or observed.spec_error:
        return
    existing = {child.name for child in observed.children}
    for group in _started(observed):
        if observed.job.spec.suspend and _gets_queue(observed, group):
            continue
        for index in range(group.replicas):
            if job_name(observed.job, group, index) not in existing:
                build = partial(job_manifest, observed.job, group, index, sidecar_image)
                yield CreateJob(build, f"Job {index} of {group.name} is missing")


def _gets_queue(observed: Observed, group: ReplicatedJob) -> bool:
    """Whether Kueue would manage the Jobs of this replicatedJob."""
    from_template = read_queue(group.job_metadata.get("labels", {}))
    return observed.job.queue is not None or from_template is not None or observed.has_queued_jobs


def _started(observed: Observed) -> list[ReplicatedJob]:
    spec = observed.job.spec
    names = startup(spec, group_counts(observed)).started
    return [group for group in spec.children if group.name in names]


def _resume(observed: Observed, current: Sequence[ChildJob], sidecar_image: str) -> Iterator[JobIntent]:
    if observed.job.spec.suspend or waits_for_claims(observed) or observed.spec_error:
        return
    started = {group.name: group for group in _started(observed)}
    for child in current:
        if not child.suspended or child.queue or child.ended or child.deleting or child.group not in started:
            continue
        wanted = job_manifest(observed.job, started[child.group], child.index, sidecar_image)
        if child.fingerprint != wanted["metadata"]["annotations"][FINGERPRINT]:
            yield _delete(child, "its template has changed while it was suspended")
        else:
            template = merge_template(child.template, wanted["spec"]["template"], read_written(child.written_fields))
            metadata = {field: wanted["metadata"][field] for field in MUTABLE_METADATA}  # other Jobs may be new or gone
            patch = {"metadata": metadata, "spec": {"suspend": False, "template": template}}
            yield PatchJob(child.name, patch, "the job is resumed", restarts_clock=child.started_at > 0)


def merge_template(existing: Mapping[str, Any], wanted: Mapping[str, Any], written: Written) -> dict[str, Any]:
    """The merge patch of a suspended Job's pod template: the wanted fields, without those that this operator has
    written before, and with those that others have added. written: by this operator, from the Job's annotation.
    """
    metadata = {x: _keys(x, existing.get("metadata", {}), wanted["metadata"], written) for x in MUTABLE_METADATA}
    spec: dict[str, Any] = {"nodeSelector": _keys("nodeSelector", existing.get("spec", {}), wanted["spec"], written)}
    for field in ("tolerations", "schedulingGates"):
        desired, written_before = wanted["spec"].get(field, []), written.get(field, [])
        others = [
            entry
            for entry in existing.get("spec", {}).get(field, ())
            if entry not in desired and entry not in written_before
        ]
        spec[field] = [*desired, *others]  # a merge patch replaces a list as a whole
    return {"metadata": metadata, "spec": spec}


def _keys(
    field: str, existing: Mapping[str, Any], wanted: Mapping[str, Any], written: Written
) -> dict[str, str | None]:
    """The patch of one mapping; None removes a key."""
    removed = [key for key in existing.get(field) or () if key in written.get(field, [])]
    return {**dict.fromkeys(removed), **wanted.get(field, {})}


def _must_suspend(child: ChildJob) -> bool:
    return bool(child.queue) or not child.suspended


def _suspend(child: ChildJob) -> JobIntent:
    reason = "the job is suspended"
    return _delete(child, reason) if child.queue else PatchJob(child.name, {"spec": {"suspend": True}}, reason)


def _delete(child: ChildJob, reason: str) -> DeleteJob:
    return DeleteJob(child.name, child.uid, reason)

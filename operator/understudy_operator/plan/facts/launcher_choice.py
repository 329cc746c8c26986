"""Whether a TrainingJob has a launcher, and so fault tolerance, or behaves as a JobSet.

| manifest | behavior |
|---|---|
| launcher, and its mode is not Off | with this launcher |
| launcher with mode Off | as a JobSet |
| no launcher, annotation jobset-compatible is "true" | as a JobSet |
| no launcher, no annotation, and the job can have one | with the launcher {} |
| no launcher, no annotation, and it cannot | as a JobSet; the message has the reason and the fix |

A function of the object alone, so the operator and the webhook decide alike. The annotation is immutable
(charts/understudy/templates/policies.yaml). launcher and the template may change while the job is suspended, and the
choice with them. Until then the condition FaultTolerant has the choice: another version of the operator may have other
rules, which must not take the launcher from a running job.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from understudy_operator.plan.facts.trainer import AUTO, describe_own_ranks, kubelet_restarts, words_of, workers_per_pod
from understudy_protocol.command_words import may_run_python
from understudy_protocol.pod import ANNOTATION_JOBSET_COMPATIBLE

Raw = Mapping[str, Any]

OFF = "Off"
#: The condition whose reason is the LauncherReason.
FAULT_TOLERANT = "FaultTolerant"
#: Pods of a world with its spares. A limit of the operator's memory: twice the largest job that the tests have run.
MOST_MEMBERS = 20_000
#: Characters of the names of the job and the replicatedJob together; the CRD's rule about the names of spares.
MOST_NAME_CHARACTERS = 50
#: Fields of a Job that define which failed pods end it. A launcher ignores them.
_JOB_POLICIES = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "maxFailedIndexes")


class LauncherReason(Enum):
    """Why a job has a launcher or none: the reason of the condition FaultTolerant."""

    SET = "LauncherSet"
    DEFAULTED = "LauncherDefaulted"
    OFF = "LauncherOff"
    JOBSET_COMPATIBLE = "JobSetCompatible"
    NOT_POSSIBLE = "LauncherNotPossible"


@dataclass(frozen=True)
class LauncherChoice:
    reason: LauncherReason = LauncherReason.SET
    message: str = ""
    needing_fields: tuple[str, ...] = ()  # fields of the spec that have no effect without a launcher

    @property
    def has_launcher(self) -> bool:
        return self.reason in (LauncherReason.SET, LauncherReason.DEFAULTED)


def recorded_choice(spec: Raw, status: Raw) -> LauncherChoice | None:
    """The choice in the status of a TrainingJob; None if it has to be made again, as in a job that is suspended, or
    has been until now.
    """
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    recorded, suspended = conditions.get(FAULT_TOLERANT), conditions.get("Suspended", {}).get("status") == "True"
    by_rules = (LauncherReason.DEFAULTED.value, LauncherReason.NOT_POSSIBLE.value)
    if recorded is None or recorded.get("reason") not in by_rules or suspended or spec.get("suspend"):
        return None
    return LauncherChoice(LauncherReason(recorded["reason"]), recorded.get("message", ""))


def choose_launcher(
    name: str, spec: Raw, annotations: Mapping[str, str], recorded: LauncherChoice | None = None
) -> LauncherChoice:
    """name and annotations: of the TrainingJob. spec: its spec, as the API server has accepted it. recorded: see
    recorded_choice().
    """
    fields = tuple(_needing_fields(spec))
    launcher = spec.get("launcher")
    if launcher is not None and launcher.get("mode") != OFF:
        return LauncherChoice(needing_fields=fields)
    if launcher is not None:
        message = "launcher.mode is Off, so the job behaves as a JobSet, which recreates its Jobs after a fault"
        return LauncherChoice(LauncherReason.OFF, message, fields)
    if annotations.get(ANNOTATION_JOBSET_COMPATIBLE) == "true":
        message = (
            f"the job has the annotation {ANNOTATION_JOBSET_COMPATIBLE}, and behaves as a JobSet, which recreates its "
            "Jobs after a fault"
        )
        return LauncherChoice(LauncherReason.JOBSET_COMPATIBLE, message, fields)
    if recorded is not None:
        return replace(recorded, needing_fields=fields)
    if obstacle := next(_obstacles(name, spec["replicatedJobs"]), ""):
        message = (
            "the job has no launcher, and behaves as a JobSet, which recreates its Jobs after a fault: "
            f'{obstacle}. If you want a JobSet, create it with the annotation {ANNOTATION_JOBSET_COMPATIBLE}: "true"'
        )
        return LauncherChoice(LauncherReason.NOT_POSSIBLE, message, fields)
    message = (
        "launcher is unset, so the job has the default launcher {}: after a fault, workers restart in place, and "
        "single pods are replaced. The image needs Python 3.9 and /bin/sh; without /bin/sh, create the job with "
        "launcher.python, the path of its Python. For the behavior of a JobSet, create the "
        f'job with the annotation {ANNOTATION_JOBSET_COMPATIBLE}: "true"'
    )
    return LauncherChoice(LauncherReason.DEFAULTED, message, fields)


def _needing_fields(spec: Raw) -> Iterator[str]:
    spares = spec.get("spares") or {}
    if spares.get("replicas") or spares.get("pool"):
        yield "spares"
    yield from (field for field in ("elastic", "faults", "rollouts") if field in spec)
    if (spec.get("failurePolicy") or {}).get("restartStrategy") == "InPlaceRestart":
        yield "failurePolicy.restartStrategy InPlaceRestart"


def _obstacles(name: str, replicated: list[Raw]) -> Iterator[str]:
    """Why the job cannot have the launcher {}, each with the fix: the rules of the CRD and of jobset/validation.py."""
    if len(replicated) != 1:
        yield (
            f"it has {len(replicated)} replicatedJobs, and the manifest does not say which of them train as one: "
            "create it with launcher.targetReplicatedJobs"
        )
        return
    (entry,) = replicated
    field, job = "replicatedJobs[0].template.spec", entry["template"]["spec"]
    pod_spec = job["template"].get("spec") or {}
    again = "and create the job again"
    replicas, parallelism = int(entry.get("replicas", 1)), int(job.get("parallelism", 1))
    if not 1 <= replicas * parallelism <= MOST_MEMBERS:
        yield (
            f"replicatedJobs[0] has {replicas * parallelism} pods, and a launcher needs 1 to {MOST_MEMBERS}: change "
            f"replicas or parallelism, {again}"
        )
    if (completions := job.get("completions", parallelism)) != parallelism:
        yield (
            f"{field}.completions is {completions} and parallelism {parallelism}, but all pods of a training run at "
            f"the same time: set both to the same number, {again}"
        )
    if (mode := job.get("completionMode", "Indexed")) != "Indexed":
        yield f"{field}.completionMode is {mode}, but each pod of a training has its own ranks: remove it, {again}"
    if policy := next((policy for policy in _JOB_POLICIES if policy in job), ""):
        yield f"{field}.{policy} has no effect with a launcher: remove it, or set launcher: {{}}, {again}"
    trainer = (pod_spec.get("containers") or [{}])[0]
    if not trainer.get("command"):
        yield (
            f"{field}.template.spec.containers[0] has no command, and the launcher cannot start an image's "
            f"ENTRYPOINT: set command, {again}"
        )
    elif not may_run_python(words_of(trainer)):
        yield (
            f"{field}.template.spec.containers[0].command names no Python program and no script, and the launcher "
            f"needs Python in the image: set launcher: {{}} if the image has it, {again}"
        )
    if own_ranks := describe_own_ranks(trainer, AUTO, replicas * parallelism * workers_per_pod(trainer)):
        yield f"{field}.template.spec.containers[0]: {own_ranks}, {again}"
    if restarts := kubelet_restarts(pod_spec, ""):
        yield f"{field}.template.spec: {restarts} would make the kubelet restart the launcher: remove it, {again}"
    if len(name) + len(entry["name"]) > MOST_NAME_CHARACTERS:
        yield (
            f"metadata.name and replicatedJobs[0].name have more than {MOST_NAME_CHARACTERS} characters together, and "
            f"names of spares would be too long: shorten one of them, {again}"
        )

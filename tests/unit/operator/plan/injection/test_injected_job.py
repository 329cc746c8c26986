"""An InjectedJob: the objects that it is made from, and how its reconcile differs from a TrainingJob's."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    ADDRESS,
    FAILED,
    IMAGE,
    KEYRING,
    NOW,
    SUCCEEDED,
    S,
    a_pod,
    a_recovery,
    a_snapshot,
    ended,
    in_round,
    lost,
    member,
    observed,
)
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.observe.read_injected import read_injected
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.cluster_objects import ChildJob, Controller, Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.malformed import Malformed
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pod_answers import NO_ANSWERS
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.status import written
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.injection.owner import read_owner
from understudy_operator.plan.injection.resolve import resolve_injected_job
from understudy_operator.plan.injection.settings import Objection, read_injection_settings
from understudy_operator.plan.injection.targets import manifest_of, read_target, spec_of
from understudy_operator.plan.intents import CreatePod, DeletePod, DeleteSecret, PatchJob
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol import pod as names
from understudy_protocol.enums import Drill, Fault
from understudy_protocol.observer import Refused

NO_LIMIT = 2**31 - 1

Raw = dict[str, Any]


def job_of_three() -> Raw:
    raw = golden_pod("job")
    template = {"metadata": {"labels": raw["metadata"]["labels"], "annotations": raw["metadata"]["annotations"]}}
    spec = {"completionMode": "Indexed", "parallelism": 3, "completions": 3, "template": template}
    return {"metadata": {"name": "train", "uid": "u"}, "spec": spec}


def manifest() -> Raw:
    pod = inject(golden_pod("job"), IMAGE).pod
    owner = read_owner(pod)
    return manifest_of("research", owner, spec_of(read_target("Job", job_of_three()), owner, pod))


def stored(status: Raw | None = None) -> Raw:
    raw = manifest()
    raw["metadata"] |= {"uid": "own-uid", "resourceVersion": "7", "creationTimestamp": "2026-11-20T10:00:00Z"}
    return {**raw, "status": status or {}}


def of_a_job(parallelism: int) -> Raw:
    raw = job_of_three()
    return {**raw, "spec": {**raw["spec"], "parallelism": parallelism, "completions": parallelism}}


def of_a_pytorchjob(replicas: int) -> Raw:
    template = job_of_three()["spec"]["template"]
    return {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": replicas, "template": template}}}}


@pytest.mark.attack(
    "B2",
    "makes a Job or a PyTorchJob of 2,000,000,000 pods that train as one",
    before="the operator took it, and accepted messages of 1,907 GiB from its pod",
)
@pytest.mark.parametrize(
    ("kind", "raw"),
    [("Job", of_a_job(20_001)), ("PyTorchJob", of_a_pytorchjob(2_000_000_000))],
    ids=["Job", "PyTorchJob"],
)
def test_a_training_of_more_than_20000_pods_is_not_injected(kind: str, raw: Raw):
    pod = inject(golden_pod("job"), IMAGE).pod
    with pytest.raises(Objection, match="at most 20000 can train as one: lower replicas or parallelism"):
        spec_of(read_target(kind, raw), read_owner(pod), pod)


def test_a_training_of_20000_pods_is_injected():
    pod = inject(golden_pod("job"), IMAGE).pod
    assert spec_of(read_target("Job", of_a_job(20_000)), read_owner(pod), pod)["pods"] == 20_000


def test_replicas_below_0_are_refused():
    pod = inject(golden_pod("job"), IMAGE).pod
    with pytest.raises(Objection, match="0 or more"):
        spec_of(read_target("PyTorchJob", of_a_pytorchjob(-1)), read_owner(pod), pod)


def test_an_injectedjob_of_more_pods_is_malformed():
    raw = stored()
    raw["spec"] |= {"pods": 20_001, "members": 20_001}
    with pytest.raises(Malformed, match=r"spec.pods: expected 20001 \(spec.members\) to 20000, got 20001"):
        read_injected(raw)


def an_injected_job(status: Raw | None = None) -> Job:
    return read_injected(stored(status))


def at(pod: Pod, index: int) -> Pod:
    """The pod with that completion index, as the operator reads it: it has no rank."""
    place = {names.ANNOTATION_POD_INDEX: f"pods/0/{index}"}
    controller = Controller("Job", "train", UID)
    return replace(pod, index=None, spare=True, labels={}, annotations=place, controller=controller)


UID = golden_pod("job")["metadata"]["labels"][keys.CONTROLLER_UID]
SECRET = f"job.train-{UID}-membership"


def key_secret(pod: Raw) -> str:
    """The Secret that an injected pod mounts."""
    (volume,) = [x for x in pod["spec"]["volumes"] if x["name"] == names.POD_VOLUME]
    return str(volume["projected"]["sources"][0]["secret"]["name"])


PODS = (at(A0, 0), at(A1, 1), at(S, 2))


def given(status: Raw | None = None, pods: tuple[Pod, ...] = PODS, **changes: Any) -> Observed:
    return observed(an_injected_job(status), pods, **changes)


def plan(facts: Observed) -> Any:
    return reconcile(facts, IMAGE, NOW)


# Its creation ---------------------------------------------------------------------------------------------------------


def test_an_injectedjob_records_the_pods_that_train_and_is_owned_by_its_job() -> None:
    raw = manifest()
    assert raw["metadata"]["name"] == "job.train"
    (reference,) = raw["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["name"], reference["controller"]) == ("Job", "train", False)
    spec = raw["spec"]
    assert (spec["pods"], spec["members"], spec["nprocPerNode"], spec["terminationGracePeriodSeconds"]) == (3, 2, 8, 60)
    assert spec["podGroups"] == [{"name": "pods", "firstGroupRank": 0, "podsPerJob": 3}]
    assert spec["annotations"]["max-restarts"] == "3"


def test_an_injectedjob_is_read_as_a_job_whose_other_pods_are_spares() -> None:
    job = an_injected_job()
    assert (job.world.actives, job.world.spares, job.world.nproc_per_node) == (2, 1, 8)
    assert job.world.in_place_max_restarts == 3
    assert job.membership == golden_pod("job")["metadata"]["labels"]["batch.kubernetes.io/controller-uid"]


def test_ranks_count_through_the_labelled_templates_of_a_jobset() -> None:
    labelled = {"metadata": {"labels": {names.LABEL_INJECT: "enabled"}}}

    def entry(name: str, replicas: int, pods: int, template: Raw) -> Raw:
        return {"name": name, "replicas": replicas, "template": {"spec": {"parallelism": pods, "template": template}}}

    unlabelled = entry("logs", 9, 9, {"spec": {}})
    jobs = [entry("lead", 1, 1, labelled), unlabelled, entry("workers", 2, 4, labelled), entry("more", 1, 3, labelled)]
    target = read_target("JobSet", {"spec": {"replicatedJobs": jobs}})
    assert [(x.name, x.first, x.pods_per_job) for x in target.groups] == [
        ("lead", 0, 1),
        ("workers", 1, 4),
        ("more", 9, 3),
    ]
    assert target.pods == 12


# Its reconcile --------------------------------------------------------------------------------------------------------


def test_each_pod_has_the_rank_of_its_index_and_the_last_one_is_a_spare() -> None:
    assert [(x.index, x.spare) for x in resolve_injected_job(given()).pods] == [(0, False), (1, False), (None, True)]


def test_no_pod_is_created_or_dry_run() -> None:
    for facts in (given(pods=(), templates_checked=False), given(pods=PODS[:1]), given(in_round(0), PODS[:1])):
        result = plan(facts)
        assert result.dry_runs == ()
        assert [x for x in result.pods if isinstance(x, CreatePod)] == []


def test_the_service_is_created_before_the_secret_that_has_its_address_and_lets_the_pods_start() -> None:
    waiting = tuple(replace(pod, sidecar_started=False, sidecar_ran=False) for pod in PODS)
    (service,) = plan(given(pods=waiting, secret_writes=SecretWrites(), coordinator_address="")).objects
    assert service.manifest["metadata"]["name"] == "job-train-understudy"
    facts = given(pods=waiting, secret_writes=SecretWrites())
    (secret,) = plan(facts).objects
    metadata, data = secret.manifest["metadata"], secret.manifest["stringData"]
    assert metadata["name"] == SECRET
    assert metadata["labels"][names.LABEL_JOB_UID] == an_injected_job().uid
    assert metadata["ownerReferences"][0]["kind"] == "InjectedJob"
    assert metadata["ownerReferences"][0]["uid"] == "own-uid"
    result = json.loads(data[names.JOB_FILE])
    assert (result["coordinator"], result["shape"]["actives"], result["shape"]["nproc_per_node"]) == (ADDRESS, 2, 8)
    assert (result["shape"]["grace_s"], result["shape"]["uid"]) == (60.0, an_injected_job().uid)
    assert data[names.KEY_FILE] == KEYRING.of_job("research", UID, 0)
    assert data[names.OPERATOR_KEY_FILE] == KEYRING.operator_public()
    # and status records the address, because the operator reads no Secret
    assert plan(facts).status.coordinator.address == ADDRESS


def test_the_address_of_a_missing_service_stays_in_status_for_the_next_one() -> None:
    before = in_round(0)
    before["coordinator"]["address"] = ADDRESS
    facts = given(before, coordinator_address="", snapshot=a_snapshot())
    (service,) = plan(facts).objects
    assert service.manifest["spec"]["clusterIP"] == "10.0.0.7"
    result = plan(facts).status or facts.job.status
    assert result.coordinator.address == ADDRESS


def test_pods_of_a_new_job_of_the_same_name_wait_for_a_secret_of_their_own() -> None:
    """A kubelet starts pods with any existing Secret of this name, even that of a deleted Job."""
    first, second = inject(golden_pod("job"), IMAGE).pod, golden_pod("job")
    second["metadata"]["labels"][keys.CONTROLLER_UID] = "another"
    second["metadata"]["ownerReferences"][0]["uid"] = "another"
    result = [key_secret(pod) for pod in (first, inject(second, IMAGE).pod)]
    assert result == [SECRET, "job.train-another-membership"]


def test_no_attempt_of_a_jobset_has_the_secret_of_another() -> None:
    raws = [golden_pod("jobset"), golden_pod("jobset")]
    raws[1]["metadata"]["labels"][keys.RESTART_ATTEMPT] = "2"
    result = [key_secret(inject(raw, IMAGE).pod) for raw in raws]
    uid = raws[0]["metadata"]["labels"][keys.UID]
    assert result == [f"jobset.llm.1-{uid}-1-membership", f"jobset.llm.2-{uid}-2-membership"]


# Training and its end -------------------------------------------------------------------------------------------------


def test_the_spare_coordinates_first() -> None:
    term = plan(given()).status.coordinator
    assert term.pod_uid == S.uid


def test_the_job_has_no_backoff_limit_while_the_training_runs() -> None:
    (patch,) = plan(given()).jobs
    assert isinstance(patch, PatchJob)
    assert (patch.name, patch.patch["spec"]) == ("train", {"backoffLimit": NO_LIMIT})
    child = ChildJob("u", "train", "", 0, 0, 0, 3, backoff_limit=NO_LIMIT)
    assert plan(given(children=(child,))).jobs == ()
    # The patch is for this very Job, and not for a new one of the same name
    assert patch.patch["metadata"]["uid"] == UID
    # If somebody has set the limit again since, the operator does not change it
    assert plan(given(children=(replace(child, backoff_limit=6),))).jobs == ()


def test_the_job_has_backoff_limit_zero_once_the_training_has_failed_for_good() -> None:
    child = ChildJob("u", "train", "", 0, 0, 0, 3, backoff_limit=NO_LIMIT)
    pods = (ended(PODS[0], FAILED), *PODS[1:])
    (patch,) = plan(given(in_round(0), pods, children=(child,))).jobs
    assert patch.patch["spec"] == {"backoffLimit": 0}
    assert plan(given(in_round(0), pods, children=(replace(child, backoff_limit=0),))).jobs == ()
    assert plan(given(in_round(0), pods, children=(replace(child, ended=True),))).jobs == ()


def test_a_lost_pod_on_a_silent_node_is_deleted_so_that_its_controller_recreates_it() -> None:
    silent = lost(A1, Fault.NODE)
    result = plan(given(in_round(0), snapshot=a_snapshot(lost=[silent])))
    assert [(x.name, x.grace_s) for x in result.pods if isinstance(x, DeletePod)] == [("a1", None)]


def test_no_pod_is_deleted_because_no_launcher_has_connected() -> None:
    """Its command, which the operator does not know, may call torchrun later."""
    answers = NO_ANSWERS.with_refusal("uid-a1", Refused("not the coordinator", lacks_launcher=True), NOW, NOW - 600)
    pods = tuple(replace(pod, trainer_started_at=NOW - 600) for pod in (A0, A1))
    result = given(in_round(0), pods, snapshot=a_snapshot([member(A0, 0)], coordinator=A0))
    result = replace(result, coordination=replace(result.coordination, answers=answers))
    assert [x for x in plan(result).pods if isinstance(x, DeletePod)] == []


def test_no_running_pod_is_deleted_after_the_end() -> None:
    pods = (ended(PODS[0], SUCCEEDED), PODS[1], at(a_pod("new", 2, sidecar_ran=False, sidecar_started=False), 2))
    assert [x for x in plan(given(in_round(0), pods)).pods if isinstance(x, DeletePod)] == []


def test_a_pod_that_starts_after_the_end_receives_the_close() -> None:
    pods = (ended(PODS[0], SUCCEEDED), PODS[1], PODS[2])
    link = plan(given(in_round(0), pods)).link
    assert {callee.pod_uid for callee in link.others} == {A1.uid, S.uid}
    assert {callee.end.reason.value for callee in link.others} == {"Succeeded"}


def test_a_success_is_reported_in_status() -> None:
    pods = tuple(ended(pod, SUCCEEDED) for pod in PODS)
    status = plan(given(in_round(0), pods)).status
    assert (status.phase, status.terminal_state) == ("Succeeded", "Completed")


# Suspension ----------------------------------------------------------------------------------------------------------

RESTING = ChildJob("u", "train", "", 0, 0, 0, 3, backoff_limit=NO_LIMIT, suspended=True)
RUNS = replace(RESTING, suspended=False)


def suspended(status: Raw, pods: tuple[Pod, ...] = (), **changes: Any) -> Observed:
    """Its Job is suspended, and the Job controller deletes the pods."""
    return given(status, pods, **{"children": (RESTING,), **changes})


def test_the_end_of_pods_of_a_suspended_job_is_no_recovery() -> None:
    fixed = {"fault": "Process", "round": 1, "detectedAt": "2026-11-20T10:00:00.000000Z"}
    fixed |= {"cause": {"pod": "", "node": "", "message": ""}}
    fixed |= {"strategy": "InPlace", "resumedAt": "2026-11-20T10:00:01.000000Z", "pauseSeconds": 1.0}
    left = a_recovery(NOW, fault=Fault.POD, strategy=None)
    before = in_round(3) | {"recoveries": [fixed], "lastRecovery": fixed}
    status = written(plan(suspended(before, snapshot=a_snapshot(recoveries=[left]))).status)
    assert status["phase"] == "Suspended"
    condition = next(x for x in status["conditions"] if x["type"] == "Suspended")
    assert condition["status"] == "True"
    assert status["recoveries"] == [fixed]
    assert status["lastRecovery"] == fixed
    assert "round" not in status


def test_a_suspended_job_has_no_secret_and_gets_it_again_with_the_same_key() -> None:
    """Its pods name the Secret at their creation, some perhaps before the operator knows of the resumption."""
    # given a job that is suspended: its attempt ends, and then its Secret is deleted
    first = plan(suspended(in_round(3, epoch=7), PODS, snapshot=a_snapshot(number=3, epoch=7)))
    assert first.objects == ()
    facts = suspended(first.status)
    assert plan(facts).objects == (DeleteSecret(SECRET),)
    writes = facts.secret_writes.after_deletion(SECRET)
    assert plan(replace(facts, secret_writes=writes)).objects == ()
    # when it is resumed
    resumed = plan(given(first.status, (), children=(RUNS,), secret_writes=writes))
    # then the key is that of its first pods
    (secret,) = resumed.objects
    assert secret.manifest["metadata"]["name"] == SECRET
    assert secret.manifest["stringData"][names.KEY_FILE] == KEYRING.of_job("research", UID, 0)


def test_no_status_is_written_and_no_pod_appointed_while_a_job_is_suspended() -> None:
    """Also while its last pods still exist."""
    first = plan(suspended(in_round(3, epoch=7), PODS, snapshot=a_snapshot(number=3, epoch=7))).status
    for pods in (PODS, ()):
        again = plan(suspended(first, pods, snapshot=a_snapshot(number=3, epoch=7)))
        assert again.status is None
        assert again.pods == ()


def test_the_suspension_of_one_of_several_jobs_of_a_jobset_does_not_suspend_the_training() -> None:
    assert plan(suspended(in_round(3), PODS, children=(RESTING, RUNS))).status.phase == "Running"
    is_done = replace(RUNS, ended=True, is_complete=True)
    assert plan(suspended(in_round(3), children=(RESTING, is_done))).status.phase == "Suspended"


def test_new_pods_of_a_resumed_job_start_at_once_in_a_newer_epoch_with_the_same_key() -> None:
    """The last report of the previous coordinator does not count: the job waits neither for it nor for an election."""
    suspended_status = plan(suspended(in_round(3, epoch=7))).status
    facts = given(suspended_status, snapshot=a_snapshot(number=3, epoch=7), children=(RUNS,), searches_since=NOW)
    term = plan(facts).status.coordinator
    assert term.pod_uid == S.uid
    assert term.epoch > suspended_status.coordinator.former_epoch >= 7
    # the pods' membership is that of their Secret, which has existed since the first pod
    assert an_injected_job(suspended_status).membership == an_injected_job().membership == UID
    assert an_injected_job(suspended_status).attempt == an_injected_job().attempt == 0


@pytest.mark.attack(
    "B4",
    "a pod of an injected job has labels that name a Job of another owner",
    before="the operator lifted the backoffLimit of that Job, and failed the Job when the training failed",
)
def test_the_patched_job_is_the_controller_of_the_pods_whatever_their_labels_name() -> None:
    forged = {keys.JOB_NAME: "of-another-owner", keys.CONTROLLER_UID: "their-uid"}
    pods = tuple(replace(pod, labels={**pod.labels, **forged}) for pod in PODS)
    assert {intent.name for intent in plan(given(pods=pods)).jobs} == {"train"}


# Drills ---------------------------------------------------------------------------------------------------------------


def drilled(*requests: str, allowed: bool = True, status: Raw | None = None) -> Observed:
    """Pods that request drills, in order."""
    pods = [
        replace(pod, annotations={**pod.annotations, names.ANNOTATION_DRILL: request} if request else pod.annotations)
        for pod, request in zip(PODS, requests, strict=False)
    ]
    snapshot = replace(a_snapshot(number=4), restarts_left=10)
    found = given(in_round(4) | (status or {}), (*pods, *PODS[len(pods) :]), snapshot=snapshot)
    return replace(found, job=replace(found.job, spec=replace(found.job.spec, drills_allowed=allowed)))


def request(fault: str, at: float = NOW) -> str:
    return f"{fault} {micro_time(at)}"


def test_a_pod_of_an_injected_job_requests_a_drill() -> None:
    # given two pods with requests, then the newest one counts
    found = plan(drilled(request("Node", NOW - 30), request("Pod"))).status.drill
    assert (found.fault, found.pods, found.refusal) == (Drill.POD, ("a1",), "")
    # and its pod is deleted once status has it
    recorded = drilled(request("Node", NOW - 30), request("Pod"))
    recorded = replace(
        recorded, job=replace(recorded.job, status=msgspec.structs.replace(recorded.job.status, drill=found))
    )
    deleted = [step for step in plan(recorded).pods if isinstance(step, DeletePod)]
    assert [(step.name, step.grace_s) for step in deleted] == [("a1", 0)]


def test_a_request_that_was_handled_stays_the_newest_after_its_pod_is_gone() -> None:
    handled = plan(drilled("", request("Pod"))).status.drill
    found = drilled(request("Node", NOW - 3000))
    found = replace(found, job=replace(found.job, status=msgspec.structs.replace(found.job.status, drill=handled)))
    written = plan(found).status
    assert written is None or written.drill == handled


@pytest.mark.parametrize("wrong", [request("Node", NOW + 10**8), "Node 9999-99", "Pod", "zzz"])
def test_a_wrong_request_hides_no_later_one(wrong: str) -> None:
    # given a request that was rejected, whose annotation stays on its pod
    rejected = plan(drilled(wrong)).status.drill
    assert rejected.request == wrong
    assert rejected.refusal
    # when another pod requests a drill, then it is done
    found = drilled(wrong, request("Pod"))
    found = replace(found, job=replace(found.job, status=msgspec.structs.replace(found.job.status, drill=rejected)))
    done = plan(found).status.drill
    assert (done.request, done.pods) == (request("Pod"), ("a1",))
    # and the wrong one does not take its place in status
    found = replace(found, job=replace(found.job, status=msgspec.structs.replace(found.job.status, drill=done)))
    written = plan(found).status
    assert written is None or written.drill == done


def test_of_two_requests_the_older_one_is_not_done_after_the_newer_one() -> None:
    # given two requests at almost the same time, of which the newer one was handled
    newer, older = request("Pod"), request("Node", NOW - 1)
    handled = plan(drilled(older, newer)).status.drill
    assert handled.request == newer
    # when its pod is gone, then the other one is not handled
    found = drilled(older)
    found = replace(found, job=replace(found.job, status=msgspec.structs.replace(found.job.status, drill=handled)))
    written = plan(found).status
    assert written is None or written.drill == handled


def test_an_injected_job_has_to_allow_drills() -> None:
    found = plan(drilled(request("Pod"), allowed=False)).status.drill
    assert found.refusal == (
        "annotation understudy.dev/drills of the pod template is not Allowed: set it, and create the Job again"
    )
    settings = read_injection_settings({"understudy.dev/drills": "Allowed"})
    assert settings.drills_allowed
    with pytest.raises(Objection, match=r"understudy.dev/drills is 'yes': set it to Allowed or Forbidden"):
        read_injection_settings({"understudy.dev/drills": "yes"})


def test_a_request_in_a_template_would_drill_with_each_pod_and_is_dropped() -> None:
    pod = golden_pod("job")
    pod["metadata"].setdefault("annotations", {})[names.ANNOTATION_DRILL] = request("Pod")
    assert names.ANNOTATION_DRILL not in inject(pod, IMAGE).pod["metadata"]["annotations"]

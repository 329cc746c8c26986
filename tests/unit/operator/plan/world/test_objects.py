"""The Secrets and the Services that a job's pods need."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    ADDRESS,
    AN_HOUR_AGO,
    KEYRING,
    NOW,
    SUCCEEDED,
    S,
    a_group,
    a_job,
    ended,
    in_round,
    observed,
    starting,
)
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.job import InjectedJob, Job
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.refusals import Refusal
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.spec import RolloutGateway, RolloutsSpec
from understudy_operator.plan.facts.status import written
from understudy_operator.plan.intents import Create, CreatePod, DeleteSecret, Plan
from understudy_operator.plan.manifests.shape import facts_secret_name
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.plan.times.reconcile_clock import ReconcileClock
from understudy_operator.plan.world.members import may_start
from understudy_operator.plan.world.objects import has_secrets, plan_objects
from understudy_protocol import pod as names

AGAIN_S = 30.0
COORDINATOR_PORT = 8478

NOTHING: dict[str, Any] = {
    "secret_writes": SecretWrites(),
    "has_hostnames_service": False,
    "coordinator_address": "",
}
SECRET = "llm-job-uid-membership"
FACTS = facts_secret_name(a_job(), ADDRESS)
#: Status of a job after its first attempt, and after its second one.
SECOND = {"coordinator": {"epoch": 50, "formerEpoch": 50, "previousAttempt": 0}}
THIRD = {"coordinator": {"epoch": 70, "formerEpoch": 70, "previousAttempt": 50}}


def planned(*pods: Pod, job: Job | None = None, **given: Any) -> dict[str, dict[str, Any]]:
    """The manifests, by name."""
    intents = plan_objects(observed(job or a_job(), pods, **given), NOW)
    return {x.manifest["metadata"]["name"]: dict(x.manifest) for x in intents if isinstance(x, Create)}


def deleted(facts: Observed) -> list[str]:
    return [intent.name for intent in plan_objects(facts, NOW) if isinstance(intent, DeleteSecret)]


def restarted(status: dict[str, Any]) -> Job:
    return a_job(status=status)


def suspended(status: dict[str, Any] | None = None) -> Job:
    return a_job(status=status or {}, spec={"suspend": True})


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        (NOTHING, [SECRET, "llm-coordinator", "llm"]),
        (NOTHING | {"secret_writes": SecretWrites({SECRET: NOW})}, ["llm-coordinator", "llm"]),
        ({"coordinator_address": ""}, ["llm-coordinator"]),
        ({"has_hostnames_service": False}, ["llm"]),
        ({"secret_writes": SecretWrites({SECRET: NOW})}, [FACTS]),
        ({}, []),
    ],
)
def test_missing_objects_are_created(present: dict[str, Any], missing: list[str]):
    assert list(planned(**present)) == missing


def test_the_facts_about_the_job_have_a_secret_of_their_own_which_needs_the_services_address():
    # given a job whose Service exists
    secret = planned(secret_writes=SecretWrites({SECRET: NOW}))[FACTS]
    # then the Secret has the address and no key, and its content never changes
    (text,) = secret["stringData"].values()
    assert secret["stringData"].keys() == {"job.json"}
    assert json.loads(text)["coordinator"] == ADDRESS
    assert secret["immutable"] is True
    # and without a Service it is not created
    assert not [name for name in planned(**NOTHING) if "facts" in name]


def test_pods_wait_until_the_secret_with_the_facts_exists():
    writes = SecretWrites({SECRET: NOW})
    assert not has_secrets(observed(a_job(), (), secret_writes=writes))
    assert has_secrets(observed(a_job(), (), secret_writes=writes.after_creation(FACTS, NOW)))


def test_a_change_of_the_recovery_leads_to_another_secret_for_new_pods():
    # given pods that mount a Secret of the job
    pods = (mounts(A0, SECRET, FACTS), mounts(A1, SECRET, FACTS))
    # when a field changes that may be changed at any time
    changed = a_job(in_place_max_restarts=99, status=in_round(0))
    writes = SecretWrites({SECRET: AN_HOUR_AGO, FACTS: AN_HOUR_AGO})
    (name,) = planned(*pods, job=changed, secret_writes=writes)
    # then the new Secret is created before pods that mount it, and the old one stays
    assert name == facts_secret_name(changed, ADDRESS) != FACTS
    assert not has_secrets(observed(changed, pods, secret_writes=writes))
    assert deleted(observed(changed, pods)) == []


# The Secret of an attempt --------------------------------------------------------------------------------------------


def test_the_secret_has_the_attempts_key_and_the_operators_public_key_and_never_changes():
    secret = planned(**NOTHING)[SECRET]
    assert secret["stringData"] == {
        names.KEY_FILE: KEYRING.of_job("research", "job-uid", 0),
        names.OPERATOR_KEY_FILE: KEYRING.operator_public(),
    }
    assert secret["immutable"] is True


@pytest.mark.attack(
    "C3", "a thief of a job's key in the next attempt of the job", before="all attempts of a job had one key"
)
def test_each_attempt_has_a_secret_and_a_key_of_its_own():
    made = {**planned(**NOTHING), **planned(job=restarted(SECOND), **NOTHING)}
    made |= planned(job=restarted(THIRD), **NOTHING)
    secrets = {name: made[name]["stringData"][names.KEY_FILE] for name in made if "membership" in name}
    assert secrets == {
        "llm-job-uid-membership": KEYRING.of_job("research", "job-uid", 0),
        "llm-job-uid-membership-50": KEYRING.of_job("research", "job-uid", 50),
        "llm-job-uid-membership-70": KEYRING.of_job("research", "job-uid", 70),
    }
    assert len(set(secrets.values())) == 3


def test_the_secret_of_a_deleted_job_of_the_same_name_does_not_count():
    """Kubernetes' garbage collector may need seconds to delete it, and the operator reads no Secret."""
    made = list(planned(job=replace(a_job(), uid="another"), secret_writes=SecretWrites()))
    assert made[0] == "llm-another-membership"
    assert [name.rpartition("-")[0] for name in made[1:]] == ["llm-another-facts"]


def test_the_longest_name_of_a_secret_is_valid():
    job = replace(a_job(name="x" * 63, status={"coordinator": {"formerEpoch": 10**10}}), uid="0" * 36)
    (name,) = [name for name in planned(job=job, **NOTHING) if "membership" in name]
    assert len(name) == 63 + 36 + 24
    assert len(name) <= 253


def test_a_secret_that_this_process_has_created_is_not_created_in_each_reconcile():
    facts = observed(a_job(), (A0, A1, S), secret_writes=SecretWrites(dict.fromkeys((SECRET, FACTS), AN_HOUR_AGO)))
    assert plan_objects(facts, NOW) == ()


def mounts(pod: Pod, *secrets: str) -> Pod:
    return replace(pod, secrets=frozenset(secrets))


@pytest.mark.parametrize(
    "pod",
    [mounts(A0, SECRET, FACTS), starting(mounts(A0, SECRET, FACTS)), ended(mounts(A0, SECRET, FACTS))],
    ids=["runs", "starts", "ended"],
)
def test_a_process_that_has_just_started_concludes_from_a_pod_that_its_secret_exists(pod: Pod):
    """A quota may reject another Secret, even one that exists."""
    facts = observed(a_job(), (pod,), secret_writes=SecretWrites())
    assert has_secrets(facts)
    assert plan_objects(facts, NOW) == ()


@pytest.mark.parametrize(
    "pod",
    [
        replace(starting(mounts(A0, SECRET)), deleting_since=NOW - 1),  # its Secret may have been deleted, too
        mounts(A0, "llm-job-uid-membership-50"),  # another attempt
        mounts(A0, "shared-0123456789abcdef.pool"),  # formerly a pool's spare
    ],
)
def test_a_process_that_has_just_started_does_not_conclude_it_from_other_pods(pod: Pod):
    facts = observed(a_job(), (pod,), secret_writes=SecretWrites())
    assert not has_secrets(facts)
    assert list(planned(pod, secret_writes=SecretWrites())) == [SECRET, FACTS]


def waiting(for_s: float, **changes: Any) -> Pod:
    """A pod that has been on its node for `for_s` seconds, without mounted volumes."""
    return replace(mounts(starting(A0), SECRET, FACTS), waiting_since=NOW - for_s, **changes)


@pytest.mark.parametrize(
    "created_at", [NOW - AGAIN_S, None, NOW + 3600.0], ids=["30 s ago", "unknown", "before the clock was set back"]
)
def test_a_secret_that_pods_wait_for_is_created_again_in_case_it_was_deleted(created_at: float | None):
    # given a pod that waits, and others that have mounted the Secret before
    writes = SecretWrites({} if created_at is None else dict.fromkeys((SECRET, FACTS), created_at))
    pods = (waiting(30.0), mounts(A1, SECRET, FACTS))
    # then the operator creates it, and the one with the facts, with the same content
    made = planned(*pods, secret_writes=writes)
    assert list(made) == [SECRET, FACTS]
    assert made[SECRET]["stringData"] == planned(**NOTHING)[SECRET]["stringData"]
    # and pods are created meanwhile
    assert has_secrets(observed(a_job(), pods, secret_writes=writes))


@pytest.mark.parametrize(
    ("pod", "created_at", "again_in_s"),
    [
        (waiting(29.0), AN_HOUR_AGO, 1.0),  # it may just be starting
        (waiting(300.0), NOW - 29.0, 1.0),  # the Secret was created again a moment ago
        (waiting(300.0, volumes_mounted=True), AN_HOUR_AGO, None),  # it pulls an image
        (waiting(300.0, deleting_since=NOW - 1), AN_HOUR_AGO, None),
        (replace(waiting(300.0), secrets=frozenset({"another"})), AN_HOUR_AGO, None),
    ],
)
def test_a_secret_is_not_recreated_too_soon_or_for_other_pods(pod: Pod, created_at: float, again_in_s: float | None):
    now = ReconcileClock(NOW)
    writes = SecretWrites(dict.fromkeys((SECRET, FACTS), created_at))
    assert plan_objects(observed(a_job(), (pod,), secret_writes=writes), now) == ()
    assert now.remaining_s == (float("inf") if again_in_s is None else again_in_s)


# Attempts that have ended ---------------------------------------------------------------------------------------------


def test_the_secret_of_the_previous_attempt_is_deleted_once():
    facts = observed(restarted(THIRD), ())
    assert deleted(facts) == ["llm-job-uid-membership-50"]
    done = facts.secret_writes.after_deletion("llm-job-uid-membership-50")
    assert deleted(replace(facts, secret_writes=done)) == []


def test_the_secret_of_the_first_attempt_is_deleted():
    assert deleted(observed(restarted(SECOND), ())) == [SECRET]
    assert deleted(observed(a_job(), ())) == []


def test_unneeded_secrets_are_deleted_before_creations_because_a_quota_may_count_secrets():
    intents = plan_objects(observed(restarted(SECOND), (), **NOTHING), NOW)
    assert [type(intent) for intent in intents] == [DeleteSecret, Create, Create, Create]


def test_a_suspended_job_has_no_secret():
    facts = observed(suspended(SECOND), (), **NOTHING)
    assert not may_start(facts)
    assert "llm-job-uid-membership-50" not in planned(job=suspended(SECOND), **NOTHING)
    assert deleted(facts) == [SECRET, "llm-job-uid-membership-50"]
    # a job that was created suspended gets no Secret either, and one of an earlier process is deleted
    assert deleted(observed(suspended(), (), **NOTHING)) == [SECRET]


def test_a_suspended_job_keeps_its_secret_until_its_attempt_has_ended():
    """Its pods may still have to report that the training has ended by itself."""
    facts = observed(suspended(in_round(3)), (A0, A1, S))
    assert deleted(facts) == []
    assert "secrets" not in str(plan_objects(facts, NOW))


def test_a_job_that_is_resumed_in_the_same_attempt_gets_its_secret_at_once():
    """The attempt had not begun when it was suspended. Pods that have mounted the deleted Secret prove nothing."""
    writes = SecretWrites({SECRET: NOW - 60}).after_deletion(SECRET)
    facts = observed(a_job(), (mounts(A0, SECRET, FACTS),), secret_writes=writes)
    assert not has_secrets(facts)
    assert list(planned(mounts(A0, SECRET, FACTS), secret_writes=writes)) == [SECRET]


def test_a_suspended_job_keeps_no_secret_that_was_derived_from_a_replaced_master_secret():
    # given a job that is suspended, and resumed after the operator was restarted with another master secret
    other = Keyring(b"another master secret, of 34 bytes")
    assert deleted(observed(suspended(), (), keyring=other, secret_writes=SecretWrites())) == [SECRET]
    writes = SecretWrites().after_deletion(SECRET)
    # then its Secret has another key
    secret = planned(keyring=other, secret_writes=writes)[SECRET]
    assert secret["stringData"] == {
        names.KEY_FILE: other.of_job("research", "job-uid", 0),
        names.OPERATOR_KEY_FILE: other.operator_public(),
    }
    assert other.of_job("research", "job-uid", 0) != KEYRING.of_job("research", "job-uid", 0)


def of_attempt(pod: Pod, attempt: int) -> Pod:
    return replace(pod, attempt=attempt)


def ending(status: dict[str, Any], now: float) -> dict[str, Any]:
    """The coordinator's status after a suspension that ends the attempt of this status."""
    pods = [of_attempt(pod, status["coordinator"].get("formerEpoch", 0)) for pod in (A0, A1, S)]
    plan: Plan = reconcile(observed(suspended(status), pods), "image", now)
    assert plan.status is not None
    return {name: value for name, value in written(plan.status.coordinator).items() if name != "address"}


def test_attempt_numbers_grow_whatever_the_clock_shows():
    # given attempts that end, the second and third without a coordinator, after the clock was set back
    first = ending({"coordinator": {"epoch": 7, "podName": "s", "podUID": S.uid}}, NOW)
    second = ending({"coordinator": first}, NOW - 1000)
    third = ending({"coordinator": second}, NOW - 1000)
    # then no number occurs twice, and each attempt has the number of the previous one
    assert first == {"epoch": 1790000000, "formerEpoch": 1790000000, "previousAttempt": 0}
    assert second == {"epoch": 1790000001, "formerEpoch": 1790000001, "previousAttempt": 1790000000}
    assert third == {"epoch": 1790000002, "formerEpoch": 1790000002, "previousAttempt": 1790000001}


def test_the_previous_attempts_number_stays_in_status_after_an_appointment():
    facts = observed(restarted(THIRD), [of_attempt(pod, 70) for pod in (A0, A1, S)])
    status = reconcile(facts, "image", NOW).status
    assert status is not None
    coordinator = status.coordinator
    assert (coordinator.pod_uid, coordinator.former_epoch, coordinator.previous_attempt) == (S.uid, 70, 50)


def test_the_secret_of_a_job_that_has_ended_is_not_created_again():
    ends = (ended(A0, SUCCEEDED), ended(A1, SUCCEEDED), ended(S, SUCCEEDED))
    assert reconcile(observed(a_job(), ends, secret_writes=SecretWrites()), "image", NOW).objects == ()


# Rollouts ------------------------------------------------------------------------------------------------------------

ROLLOUTS = "llm-job-uid-rollouts"


def in_rl(status: dict[str, Any] | None = None, **changes: Any) -> Job:
    rollouts = RolloutsSpec(groups=("rollout",), gateway=RolloutGateway(engine_port=30000))
    groups = (a_group(), a_group("rollout", parallelism=1))
    spec = {"replicated_jobs": groups, "rollouts": rollouts, **changes}
    return a_job(status=status, spec=spec)


def test_the_token_of_gateways_has_a_secret_of_its_own_and_is_the_same_in_all_attempts():
    first, second = planned(job=in_rl(), **NOTHING), planned(job=in_rl(SECOND), **NOTHING)
    assert first[ROLLOUTS]["stringData"] == {names.ROLLOUT_TOKEN_KEY: KEYRING.of_rollouts("research", "job-uid")}
    assert second[ROLLOUTS] == first[ROLLOUTS]
    # and the Secret is kept when only the world restarts
    assert deleted(observed(in_rl(SECOND), ())) == [SECRET]


def test_the_tokens_secret_is_created_again_for_a_rollouts_pod_that_waits_for_it():
    pod = replace(waiting(60.0), secrets=frozenset({ROLLOUTS}))
    facts = observed(in_rl(), (), job_pods=(pod,))
    assert [x.manifest["metadata"]["name"] for x in plan_objects(facts, NOW) if isinstance(x, Create)] == [ROLLOUTS]


def test_the_token_of_a_suspended_job_is_deleted():
    assert deleted(observed(in_rl(suspend=True), ())) == [SECRET, ROLLOUTS]


# The Services --------------------------------------------------------------------------------------------------------


def test_the_coordinators_service_selects_the_labelled_pod_also_while_it_is_not_ready():
    spec = planned(**NOTHING)["llm-coordinator"]["spec"]
    assert spec["selector"] == {names.LABEL_JOB_UID: "job-uid", names.LABEL_COORDINATOR: "true"}
    assert spec["publishNotReadyAddresses"] is True
    assert "clusterIP" not in spec  # Kubernetes assigns one, which pods get instead of a name
    assert spec["ports"] == [{"name": "membership", "port": COORDINATOR_PORT, "protocol": "TCP"}]


def alone(**changes: Any) -> Job:
    """A job of one pod without spares."""
    return a_job(**({"parallelism": 1, "spares": 0} | changes))


def test_a_job_with_one_member_has_no_service_for_its_coordinator():
    # given a new job of one pod without spares
    job = alone()
    made = planned(job=job, **NOTHING)
    # then it gets the hostnames' Service, and its pod's facts have no coordinator's address
    name = facts_secret_name(job, "")
    assert list(made) == [SECRET, name, "llm"]
    assert json.loads(made[name]["stringData"]["job.json"])["coordinator"] == ""
    # and once these exist, its pod is created, with the coordinator's label
    writes = SecretWrites({SECRET: NOW, name: NOW})
    plan = reconcile(observed(job, (), coordinator_address="", secret_writes=writes), "sidecar:1", NOW)
    (pod,) = (intent.manifest for intent in plan.pods if isinstance(intent, CreatePod))
    assert pod["metadata"]["labels"][names.LABEL_COORDINATOR] == "true"


@pytest.mark.parametrize(
    "job", [alone(parallelism=2), alone(spares=1), alone(pool="warm")], ids=["pod", "spare", "pool"]
)
def test_the_pods_of_a_job_that_can_have_more_members_wait_for_the_coordinators_service(job: Job):
    assert "llm-coordinator" in planned(job=job, **NOTHING)
    assert reconcile(observed(job, (), coordinator_address=""), "sidecar:1", NOW).pods == ()
    # and they do not have the coordinator's label before the operator has chosen one of them
    plan = reconcile(observed(job, ()), "sidecar:1", NOW)
    created = [intent.manifest["metadata"]["labels"] for intent in plan.pods if isinstance(intent, CreatePod)]
    assert [labels for labels in created if names.LABEL_COORDINATOR in labels] == []


def test_a_job_of_one_pod_gets_the_coordinators_service_with_its_first_spare():
    # given a job that ran without a Service, and that now gets a spare
    job = alone(spares=1, status=in_round(coordinator="a0"))
    before = SecretWrites({SECRET: NOW, facts_secret_name(job, ""): NOW})
    # then it gets the Service
    assert list(planned(A0, job=job, coordinator_address="", secret_writes=before)) == ["llm-coordinator"]
    # and then a Secret with its address, for the spare
    assert list(planned(A0, job=job, secret_writes=before)) == [facts_secret_name(job, ADDRESS)]


def test_an_injected_job_of_one_pod_has_the_coordinators_service_because_its_secret_cannot_change():
    job = replace(alone(), injected=InjectedJob("uid-of-it", (), 30, "Job", "train"))
    assert list(planned(job=job, **NOTHING)) == ["llm-coordinator"]


def test_the_coordinators_service_finds_the_port_of_each_pod_with_host_network():
    (port,) = planned(job=a_job(host_network=True), **NOTHING)["llm-coordinator"]["spec"]["ports"]
    assert port == {"name": "membership", "port": COORDINATOR_PORT, "protocol": "TCP", "targetPort": "understudy"}


def test_the_hostnames_service_is_headless_and_has_all_pods():
    spec = planned(**NOTHING)["llm"]["spec"]
    assert spec == {
        "clusterIP": "None",
        "selector": {keys.UID: "job-uid"},
        "publishNotReadyAddresses": True,
    }


def test_all_objects_have_the_owner_and_the_labels_of_the_job():
    for manifest in planned(**NOTHING).values():
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "research"
        assert metadata["labels"] == {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: "job-uid"}
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", "job-uid", True)


def test_the_coordinators_service_is_recreated_at_the_pods_known_address():
    job = a_job(status={"coordinator": {"address": "10.0.0.9:8478"}})
    assert planned(A0, job=job, coordinator_address="")["llm-coordinator"]["spec"]["clusterIP"] == "10.0.0.9"


def test_the_coordinators_service_gets_another_address_if_the_old_one_is_taken():
    job = a_job(status={"coordinator": {"address": "10.0.0.9:8478"}})
    message = (
        'Service "llm-coordinator" is invalid: spec.clusterIPs: failed to allocate: provided IP is already allocated'
    )
    assert (
        "clusterIP"
        not in planned(A0, job=job, coordinator_address="", refusals=(Refusal(message),))["llm-coordinator"]["spec"]
    )

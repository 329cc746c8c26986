"""The NetworkPolicy of a job: which pods reach its members."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import IMAGE, a_group, a_job, in_round
from tests.unit.operator.given_warm import a_warm_pool
from tests.unit.operator.plan.injection.test_injected_job import an_injected_job
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.manifests.child_jobs import job_manifest
from understudy_operator.plan.manifests.network_policy import missing_policies, network_policy, outdated_policies
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.plan.manifests.pool_pods import pool_spare_manifest
from understudy_protocol import pod as names

OPERATOR = {"from": [{"podSelector": {"matchLabels": {"app": "operator"}}}], "ports": [{"port": 8478}]}
KEY = ("research", "llm-members")


def spec_of(job: Job) -> dict[str, Any]:
    spec: dict[str, Any] = network_policy(job, (OPERATOR,))["spec"]
    return spec


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted: dict[str, str] = selector["matchLabels"]
    return wanted.items() <= labels.items()


def labels_of(job: Job, index: int | None) -> dict[str, str]:
    made = pod_manifest(job, index=index, serial="1", facts="facts", sidecar_image=IMAGE)
    labels: dict[str, str] = made["metadata"]["labels"]
    return labels


def find_reachable(job: Job, labels: dict[str, str]) -> bool:
    """Whether pods with these labels reach all ports."""
    return any(selects(peer["podSelector"], labels) for peer in spec_of(job)["ingress"][0]["from"])


def test_the_policy_selects_actives_and_spares_of_every_attempt_and_is_owned_by_the_job() -> None:
    job = a_job()
    for pod in (labels_of(job, 0), labels_of(job, None)):
        assert selects(spec_of(job)["podSelector"], pod)
        assert not selects(spec_of(replace(job, uid="other"))["podSelector"], pod)
    again = a_job(status={"coordinator": {"formerEpoch": 3}})
    assert selects(spec_of(again)["podSelector"], labels_of(again, 0))
    metadata = network_policy(job, ())["metadata"]
    assert (metadata["namespace"], metadata["name"]) == KEY
    assert metadata["ownerReferences"][0]["uid"] == "job-uid"


def test_all_pods_of_the_job_reach_its_members() -> None:
    data = a_group("data", 1, 1)
    job = a_job()
    job = replace(job, spec=replace(job.spec, replicated_jobs=(*job.spec.replicated_jobs, data)))
    other = job_manifest(job, data, 0, IMAGE)["spec"]["template"]["metadata"]["labels"]
    for pod in (labels_of(job, 0), labels_of(job, None), other):
        assert find_reachable(job, pod)
        assert not find_reachable(replace(job, uid="other"), pod)
    # the chart's values define all other callers
    assert spec_of(job)["ingress"][1:] == [OPERATOR]


def test_the_policy_covers_neither_pods_of_other_replicated_jobs_nor_spares_of_a_pool() -> None:
    """A limit that docs/explanation/security.md states."""
    data, job, pool = a_group("data", 1, 1), a_job(), a_warm_pool()
    job = replace(job, spec=replace(job.spec, replicated_jobs=(*job.spec.replicated_jobs, data)))
    other = job_manifest(job, data, 0, IMAGE)["spec"]["template"]["metadata"]["labels"]
    spare = pool_spare_manifest(pool, "1", sidecar_image=IMAGE, secret="shared.pool")["metadata"]["labels"]
    for labels in (other, spare):
        assert not selects(spec_of(job)["podSelector"], labels)


def lets_in(policy: dict[str, Any], namespace: str, labels: dict[str, str], namespace_labels: dict[str, str]) -> bool:
    """Whether a controller of NetworkPolicies admits a pod: a rule with only a podSelector applies to the policy's
    namespace.
    """
    for rule in policy["spec"]["ingress"]:
        for peer in rule.get("from", [{"namespaceSelector": {"matchLabels": {}}}]):
            chosen = peer.get("namespaceSelector")
            in_namespace = (
                selects(chosen, namespace_labels)
                if chosen is not None
                else namespace == policy["metadata"]["namespace"]
            )
            if in_namespace and selects(peer.get("podSelector", {"matchLabels": {}}), labels):
                return True
    return False


@pytest.mark.attack(
    "B3", "calls the members of a job from other pods, with networkPolicies.jobs.enabled", before="refused, too"
)
def test_no_pod_of_another_job_or_namespace_reaches_members_whatever_its_labels() -> None:
    job, operator = a_job(), {"podSelector": {"matchLabels": {"app": "operator"}}}
    operator |= {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "understudy-system"}}}
    policy = network_policy(job, ({"from": [operator], "ports": [{"port": 8478}]},))
    own = labels_of(job, 0)
    here, present = "research", "elsewhere"
    assert lets_in(policy, here, own, {"kubernetes.io/metadata.name": here})
    # when pods without labels call, pods of another job, and pods elsewhere with the labels of the job or the operator
    attackers = [
        (here, {}),
        (here, labels_of(replace(job, uid="other"), 0)),
        (here, {names.LABEL_JOB: job.name}),
        (here, {"app": "operator"}),
        (present, own),
        (present, {**own, "app": "operator"}),
    ]
    # then none is admitted
    let_in = [x for x in attackers if lets_in(policy, *x, {"kubernetes.io/metadata.name": x[0]})]
    assert let_in == []


def test_members_of_an_injected_job_are_reached_by_each_other_and_by_the_rest_of_their_jobset() -> None:
    job = an_injected_job()
    assert find_reachable(job, {names.LABEL_JOB_UID: job.uid})
    assert not find_reachable(job, {keys.NAME: "train"})
    assert job.injected is not None
    of_jobset = replace(job, injected=replace(job.injected, target_kind="JobSet", target_name="train"))
    assert find_reachable(of_jobset, {keys.NAME: "train"})


def test_a_job_without_members_or_that_has_ended_gets_no_policy() -> None:
    job = a_job()
    ended = a_job(status=in_round(0) | {"terminalState": "Completed"})
    without = replace(job, spec=replace(job.spec, world=None))
    assert list(missing_policies((ended, without, a_job(deleting=True)), {}, ())) == []
    assert [x["metadata"]["name"] for x in missing_policies((job,), {}, ())] == ["llm-members"]
    assert list(missing_policies((job,), {KEY: {}}, ())) == []


def test_a_changed_policy_is_restored_and_that_of_another_job_is_not() -> None:
    job, wanted = a_job(), network_policy(a_job(), ())
    assert list(outdated_policies((job,), {KEY: wanted}, ())) == []
    opened = {**wanted, "spec": {**wanted["spec"], "ingress": [{}]}}
    assert list(outdated_policies((job,), {KEY: opened}, ())) == [wanted]
    # the chart's rules have changed
    assert [x["spec"]["ingress"][1:] for x in outdated_policies((job,), {KEY: wanted}, (OPERATOR,))] == [[OPERATOR]]
    # a policy of a deleted job of that name: it is deleted with that job
    assert list(outdated_policies((replace(job, uid="new"),), {KEY: opened}, ())) == []

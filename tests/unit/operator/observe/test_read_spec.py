"""Reads a TrainingJob's spec into facts: the fields of a JobSet, and the pods of the world."""

from typing import Any

import pytest

from understudy_operator.observe.read_spec import read_spec
from understudy_operator.plan.facts import spec as facts
from understudy_operator.plan.facts.keys import EXCLUSIVE, NODE_SELECTOR
from understudy_operator.plan.facts.launcher_choice import LauncherReason
from understudy_protocol.enums import OnFailedUpdate


def entry(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "template": {"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}} | changes


def spec_of(annotations: dict[str, str] | None = None, **spec: Any) -> facts.JobSpec:
    metadata = {} if annotations is None else {"annotations": annotations}
    return read_spec({"metadata": metadata, "spec": {"replicatedJobs": [entry("workers")]} | spec})


def test_a_minimal_spec_gets_jobsets_defaults():
    spec = spec_of()
    assert spec == facts.JobSpec(spec.replicated_jobs, launcher=spec.launcher)
    (group,) = spec.replicated_jobs
    assert (group.replicas, group.parallelism, group.group, group.depends_on) == (1, 1, "default", ())
    assert (spec.success.operator, spec.success.targets) == (facts.SuccessOperator.ALL, ())
    assert spec.network == facts.Network(hostnames=True, subdomain="", publish_not_ready=True)


def test_a_job_that_can_have_no_launcher_has_no_world():
    # its container has no command
    spec = spec_of(spares={"replicas": 0}, recovery={})
    assert spec.world is None
    assert spec.launcher.reason is LauncherReason.NOT_POSSIBLE


def with_status(command: list[str], *conditions: dict[str, str], **spec: Any) -> facts.JobSpec:
    template = {"spec": {"template": {"spec": {"containers": [{"name": "c", "command": command}]}}}}
    groups = [entry("workers", template=template)]
    return read_spec(
        {"metadata": {}, "spec": {"replicatedJobs": groups} | spec, "status": {"conditions": [*conditions]}}
    )


LAUNCHER = {"type": "FaultTolerant", "status": "True", "reason": "LauncherDefaulted", "message": "m"}
NO_LAUNCHER = {"type": "FaultTolerant", "status": "False", "reason": "LauncherNotPossible", "message": "why"}


def test_a_running_job_keeps_its_launcher_under_other_rules():
    """Another version of the operator has made the choice."""
    spec = with_status(["sleep", "1"], LAUNCHER)
    assert spec.world is not None
    assert (spec.launcher.reason, spec.launcher.message) == (LauncherReason.DEFAULTED, "m")
    spec = with_status(["python", "train.py"], NO_LAUNCHER)
    assert spec.world is None
    assert (spec.launcher.reason, spec.launcher.message) == (LauncherReason.NOT_POSSIBLE, "why")


def test_the_rules_of_today_apply_to_a_job_that_is_or_was_suspended():
    suspended = {"type": "Suspended", "status": "True", "reason": "SuspendedJobs", "message": ""}
    assert with_status(["sleep", "1"], LAUNCHER, suspend=True).world is None
    assert with_status(["sleep", "1"], LAUNCHER, suspended).world is None
    assert with_status(["sleep", "1"], LAUNCHER, suspended | {"status": "False"}).world is not None


def test_a_field_launcher_that_was_added_counts_more_than_the_status():
    assert with_status(["sleep", "1"], NO_LAUNCHER, launcher={}).launcher.reason is LauncherReason.SET


def test_a_job_without_the_field_launcher_has_the_default_one():
    template = {"spec": {"template": {"spec": {"containers": [{"name": "c", "command": ["python", "train.py"]}]}}}}
    spec = spec_of(replicatedJobs=[entry("workers", template=template)], spares={"replicas": 1})
    assert spec.launcher.reason is LauncherReason.DEFAULTED
    assert spec.world == facts.World(spec.replicated_jobs, spares=1)


def test_mode_off_makes_no_world():
    assert spec_of(launcher={"mode": "Off", "nprocPerNode": 8}).world is None


def test_the_annotation_of_a_jobset_makes_no_world():
    assert spec_of({"understudy.dev/jobset-compatible": "true"}).world is None


def test_the_launcher_names_the_pods_of_the_world_and_the_spares_their_template():
    spec = spec_of(
        replicatedJobs=[entry("driver"), entry("leader"), entry("workers")],
        launcher={"targetReplicatedJobs": ["workers", "leader"]},
        spares={"replicas": 1, "replicatedJob": "workers"},
    )
    assert spec.world is not None
    assert [group.name for group in spec.world.groups] == ["leader", "workers"]  # in the order of replicatedJobs
    assert spec.world.spare_group.name == "workers"
    assert [group.name for group in spec.children] == ["driver"]


def test_without_targets_the_only_replicated_job_is_the_world():
    world = spec_of(launcher={}).world
    assert world is not None
    assert [group.name for group in world.groups] == ["workers"]


def test_policies_are_read_as_they_are_written():
    rule = {"action": "RestartJob", "onJobFailureReasons": ["PodFailurePolicy"], "targetReplicatedJobs": ["workers"]}
    named = {"name": "oom", "action": "FailJobSet", "onJobFailureMessagePatterns": ["OOM.*"]}
    spec = spec_of(
        failurePolicy={"maxRestarts": 3, "restartStrategy": "BlockingRecreate", "rules": [rule, named]},
        successPolicy={"operator": "Any", "targetReplicatedJobs": ["workers"]},
        startupPolicy={"startupPolicyOrder": "InOrder"},
        suspend=True,
        managedBy="kueue.x-k8s.io/multikueue",
        ttlSecondsAfterFinished=0,
    )
    assert spec.failure == facts.FailurePolicy(
        3,
        facts.RestartStrategy.BLOCKING_RECREATE,
        (
            facts.FailureRule(
                "failurePolicyRule0", facts.Action.RESTART_JOB, reasons=("PodFailurePolicy",), targets=("workers",)
            ),
            facts.FailureRule("oom", facts.Action.FAIL, patterns=("OOM.*",)),
        ),
    )
    assert spec.success == facts.SuccessPolicy(facts.SuccessOperator.ANY, ("workers",))
    assert (spec.in_order, spec.suspend, spec.managed_by, spec.ttl_s) == (True, True, "kueue.x-k8s.io/multikueue", 0.0)


def test_the_other_fields_of_a_jobset_are_read():
    depends = [{"name": "data", "status": "Complete"}]
    claim = {"metadata": {"name": "cache"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    spec = spec_of(
        replicatedJobs=[entry("data"), entry("workers", dependsOn=depends, groupName="train", replicas=0)],
        network={"enableDNSHostnames": False, "subdomain": "net", "publishNotReadyAddresses": False},
        coordinator={"replicatedJob": "workers", "podIndex": 2},
        volumeClaimPolicies=[{"templates": [claim], "retentionPolicy": {"whenDeleted": "Retain"}}],
    )
    workers = spec.replicated_jobs[1]
    assert workers.depends_on == (facts.Dependency("data", facts.DependencyStatus.COMPLETE),)
    assert (workers.group, workers.replicas, workers.pods) == ("train", 0, 0)
    assert spec.network == facts.Network(hostnames=False, subdomain="net", publish_not_ready=False)
    assert spec.coordinator == facts.CoordinatorPod("workers", 0, 2)
    assert spec.claims == (facts.VolumeClaim("cache", claim, retained=True),)


RACK, ZONE, SELECTOR = {EXCLUSIVE: "rack"}, {EXCLUSIVE: "zone"}, {NODE_SELECTOR: "true"}


@pytest.mark.parametrize(
    ("of_job", "of_template", "expected"),
    [
        ({}, {}, None),
        (SELECTOR, {}, None),
        ({}, SELECTOR, None),
        (RACK, {}, facts.Exclusive("rack")),
        ({}, ZONE, facts.Exclusive("zone")),
        (RACK, ZONE, facts.Exclusive("zone")),
        (RACK | SELECTOR, {}, facts.Exclusive("rack", node_selector=True)),
        ({}, ZONE | SELECTOR, facts.Exclusive("zone", node_selector=True)),
        (RACK | SELECTOR, ZONE, facts.Exclusive("zone", node_selector=True)),
        (RACK, SELECTOR, facts.Exclusive("rack", node_selector=True)),
        (SELECTOR, ZONE, facts.Exclusive("zone")),
    ],
)
def test_exclusive_placement_comes_from_jobsets_annotations_of_the_job_and_of_the_template(
    of_job: dict[str, str], of_template: dict[str, str], expected: facts.Exclusive | None
):
    """As in JobSet 0.12: labelAndAnnotateObject and constructJob."""
    group = entry("workers")
    group["template"]["metadata"] = {"annotations": of_template}
    assert spec_of(of_job, replicatedJobs=[group]).replicated_jobs[0].exclusive == expected


def test_rollouts_and_their_defaults_are_read():
    groups = [entry("workers"), entry("rollout")]
    values: dict[str, Any] = {"replicatedJobs": ["rollout"], "gateway": {"enginePort": 30000}}
    assert spec_of(replicatedJobs=groups).rollouts is None
    assert spec_of(replicatedJobs=groups, rollouts=values).rollouts == facts.RolloutsSpec(
        ("rollout",), OnFailedUpdate.RESTART_JOB, 0, facts.RolloutGateway(30000, 8080)
    )
    given = {"enginePort": 1, "port": 2, "inFlightRequests": "Wait", "initialVersion": "base"}
    values |= {"onFailedUpdate": "RestartRollouts", "maxRetries": 3, "gateway": given}
    assert spec_of(replicatedJobs=groups, rollouts=values).rollouts == facts.RolloutsSpec(
        ("rollout",), OnFailedUpdate.RESTART_ROLLOUTS, 3, facts.RolloutGateway(1, 2, True, "base")
    )

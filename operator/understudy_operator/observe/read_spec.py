"""A raw TrainingJob -> its spec's facts. The API server's defaults are repeated here, for older objects."""

from collections.abc import Mapping
from typing import Any

from understudy_operator.observe.store import Raw
from understudy_operator.plan.facts import spec as facts
from understudy_operator.plan.facts.keys import EXCLUSIVE, NODE_SELECTOR
from understudy_operator.plan.facts.launcher_choice import choose_launcher, recorded_choice
from understudy_operator.plan.facts.quantities import bytes_in
from understudy_operator.plan.facts.spec import MAX_RESTARTS, JobSpec, ReplicatedJob, World
from understudy_operator.plan.facts.trainer import restarts_of_torchrun, workers_per_pod
from understudy_operator.plan.times.durations import seconds
from understudy_protocol.enums import OnFailedUpdate

#: Fields besides replicatedJobs that can change only while the job is suspended; the second ones are in `recovery`.
SUSPENDED_ONLY = ("launcher", "termination", "faults", "elastic", "snapshots")
SUSPENDED_ONLY_OF_RECOVERY = ("coordinatorLossTimeout", "launcherTimeout")


def read_spec(raw: Raw) -> JobSpec:
    spec, metadata = raw["spec"], raw["metadata"]
    annotations = metadata.get("annotations") or {}
    replicated = tuple(_replicated_job(entry, annotations) for entry in spec["replicatedJobs"])
    name = metadata.get("name") or metadata.get("generateName", "")
    choice = choose_launcher(name, spec, annotations, recorded_choice(spec, raw.get("status") or {}))
    return JobSpec(
        replicated_jobs=replicated,
        world=_world(spec, replicated) if choice.has_launcher else None,
        launcher=choice,
        network=_network(spec.get("network", {})),
        success=_success(spec.get("successPolicy", {})),
        failure=_failure(spec["failurePolicy"]) if "failurePolicy" in spec else None,
        in_order=spec.get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder",
        suspend=bool(spec.get("suspend", False)),
        coordinator=_coordinator(spec["coordinator"]) if "coordinator" in spec else None,
        managed_by=spec.get("managedBy", ""),
        ttl_s=float(spec["ttlSecondsAfterFinished"]) if "ttlSecondsAfterFinished" in spec else None,
        rollouts=_rollouts(spec["rollouts"]) if "rollouts" in spec else None,
        drills_allowed=spec.get("drills") == "Allowed",
        claims=tuple(claim for policy in spec.get("volumeClaimPolicies", ()) for claim in _claims(policy)),
    )


def _replicated_job(entry: Raw, of_job: Raw) -> ReplicatedJob:
    """of_job: the annotations of the TrainingJob."""
    waits_for = entry.get("dependsOn", ())
    return ReplicatedJob(
        name=entry["name"],
        template=entry["template"],
        replicas=int(entry.get("replicas", 1)),
        group=entry.get("groupName", facts.DEFAULT_GROUP),
        depends_on=tuple(facts.Dependency(x["name"], facts.DependencyStatus(x["status"])) for x in waits_for),
        exclusive=_exclusive(of_job, entry["template"].get("metadata", {}).get("annotations", {})),
    )


def _exclusive(of_job: Raw, of_template: Raw) -> facts.Exclusive | None:
    """As in JobSet, a template may override the topology key of the job, and the node selector of either counts. That
    of the job counts only beside a topology key of the job.
    """
    key = of_template.get(EXCLUSIVE, of_job.get(EXCLUSIVE))
    if key is None:
        return None
    return facts.Exclusive(key, NODE_SELECTOR in of_template or (EXCLUSIVE in of_job and NODE_SELECTOR in of_job))


def _network(network: Raw) -> facts.Network:
    return facts.Network(
        hostnames=bool(network.get("enableDNSHostnames", True)),
        subdomain=network.get("subdomain", ""),
        publish_not_ready=bool(network.get("publishNotReadyAddresses", True)),
    )


def _success(policy: Raw) -> facts.SuccessPolicy:
    operator = facts.SuccessOperator(policy.get("operator", "All"))
    return facts.SuccessPolicy(operator, tuple(policy.get("targetReplicatedJobs", ())))


def _failure(policy: Raw) -> facts.FailurePolicy:
    rules = tuple(
        facts.FailureRule(
            name=rule.get("name") or f"failurePolicyRule{number}",
            action=facts.Action(rule["action"]),
            reasons=tuple(rule.get("onJobFailureReasons", ())),
            patterns=tuple(rule.get("onJobFailureMessagePatterns", ())),
            targets=tuple(rule.get("targetReplicatedJobs", ())),
        )
        for number, rule in enumerate(policy.get("rules", ()))
    )
    strategy = facts.RestartStrategy(policy.get("restartStrategy", "Recreate"))
    return facts.FailurePolicy(int(policy.get("maxRestarts", 0)), strategy, rules)


def _coordinator(entry: Raw) -> facts.CoordinatorPod:
    return facts.CoordinatorPod(entry["replicatedJob"], int(entry.get("jobIndex", 0)), int(entry.get("podIndex", 0)))


def _claims(policy: Raw) -> list[facts.VolumeClaim]:
    retained = policy.get("retentionPolicy", {}).get("whenDeleted", "Delete") == "Retain"
    return [facts.VolumeClaim(x["metadata"]["name"], x, retained) for x in policy.get("templates", ())]


def _rollouts(entry: Raw) -> facts.RolloutsSpec:
    return facts.RolloutsSpec(
        groups=tuple(entry["replicatedJobs"]),
        on_failed_update=OnFailedUpdate(entry.get("onFailedUpdate", OnFailedUpdate.RESTART_JOB)),
        max_retries=int(entry.get("maxRetries", 0)),
        gateway=_gateway(entry["gateway"]) if "gateway" in entry else None,
    )


def _gateway(entry: Raw) -> facts.RolloutGateway:
    return facts.RolloutGateway(
        engine_port=int(entry["enginePort"]),
        port=int(entry.get("port", 8080)),
        waits_for_requests=entry.get("inFlightRequests") == "Wait",
        initial_version=entry.get("initialVersion", ""),
    )


def _world(spec: Raw, replicated: tuple[ReplicatedJob, ...]) -> World:
    launcher, spares, recovery = spec.get("launcher", {}), spec.get("spares", {}), spec.get("recovery", {})
    in_place: Mapping[str, Any] = recovery.get("inPlace", {})
    termination, fence = spec.get("termination", {}), recovery.get("coordinatorLossTimeout", "30s")
    faults: Mapping[str, Any] = spec.get("faults", {})
    snapshots: Mapping[str, Any] = spec.get("snapshots", {})
    storage: Mapping[str, Any] = snapshots.get("storage", {})
    targets = launcher.get("targetReplicatedJobs") or [replicated[0].name]
    groups = tuple(group for group in replicated if group.name in targets)
    trainer = _trainer(groups, launcher.get("container", ""))
    return World(
        groups=groups,
        nproc_per_node=int(launcher["nprocPerNode"]) if "nprocPerNode" in launcher else workers_per_pod(trainer),
        container=launcher.get("container", ""),
        spares=int(spares.get("replicas", 0)),
        spare_priority_class=spares.get("priorityClassName", ""),
        spare_template=spares.get("replicatedJob", ""),
        in_place_max_restarts=_max_restarts(in_place, trainer),
        in_place_window_s=seconds(in_place.get("window", "1h")),
        in_place_max_per_pod=int(in_place.get("maxRestartsPerPod", 1)),
        min_actives=int(spec.get("elastic", {}).get("minPods", 0)),
        spare_timeout_s=seconds(recovery.get("spareTimeout", "30s")),
        fence_s=0.0 if fence == "Off" else seconds(fence),
        launcher_timeout_s=seconds(recovery.get("launcherTimeout", "15s")),
        backoff_max_delay_s=seconds(recovery.get("backoff", {}).get("maxDelay", "30s")),
        worker_grace_period_s=seconds(recovery["workerGracePeriod"]) if "workerGracePeriod" in recovery else None,
        script_fault_rounds=int(recovery.get("backoff", {}).get("maxIdenticalFailures", 0)),
        history_limit=int(recovery.get("historyLimit", 200)),
        warmup=tuple(spares.get("warmup", {}).get("command", ())),
        topology_key=spares.get("topologyKey", ""),
        pool=spares.get("pool", ""),
        mode=launcher.get("mode", "Auto"),
        zygote=bool(launcher.get("forkServer", True)),
        on_sigterm=termination.get("onSigterm", "Auto"),
        host_network=any((group.pod_template.get("spec") or {}).get("hostNetwork") for group in groups),
        nologin_path=faults.get("nodeFile", ""),
        python=launcher.get("python", ""),
        log_prefix=bool(launcher.get("logPrefix", True)),
        slow_rank_percent=int(launcher.get("slowRankPercent", 150)),
        replica_groups=tuple(tuple(map(int, group)) for group in termination.get("replicaGroups", ())),
        step_timeout_s=seconds(faults.get("hang", {}).get("stepTimeout", "0s")),
        start_timeout_s=seconds(faults.get("hang", {}).get("startTimeout", "0s")),
        proactive_replacement=faults.get("proactiveReplacement", "Off"),
        avoid_nodes=faults.get("avoidNodes", "Prefer"),
        preload=tuple(launcher["preload"]) if "preload" in launcher else None,
        snapshot_bytes=bytes_in(snapshots["size"]) or 0 if "size" in snapshots else 0,
        snapshot_every=int(snapshots.get("every", 1)),
        wanted_copies=int(snapshots["copies"]) if "copies" in snapshots else None,
        snapshot_path=storage.get("path", ""),
        snapshot_path_every=int(storage.get("every", 1000)),
        snapshot_path_keep=int(storage.get("keep", 2)),
        shared_memory=read_shared_memory(launcher),
        suspended_only={
            **{name: spec[name] for name in SUSPENDED_ONLY if name in spec},
            **{name: recovery[name] for name in SUSPENDED_ONLY_OF_RECOVERY if name in recovery},
        },
    )


def read_shared_memory(launcher: Raw) -> facts.SharedMemory | None:
    """The shared memory that the launcher of a job or a pool asks for."""
    given = launcher.get("sharedMemory") or {}
    return facts.SharedMemory(given["size"], given.get("medium") == "Disk") if "size" in given else None


def _trainer(groups: tuple[ReplicatedJob, ...], name: str) -> Raw:
    """The trainer container of the first replicatedJob; empty if the spec has none, which the validation reports."""
    containers: list[Raw] = groups[0].pod_template.get("spec", {}).get("containers", []) if groups else []
    return next((container for container in containers if name in ("", container["name"])), {})


def _max_restarts(in_place: Raw, trainer: Raw) -> int:
    if "maxRestarts" in in_place:
        return int(in_place["maxRestarts"])
    of_torchrun = restarts_of_torchrun(trainer)
    return MAX_RESTARTS if of_torchrun is None else of_torchrun

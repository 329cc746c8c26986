"""A raw HotSparePool -> a Pool; and the parts of the store that pools and their jobs read."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from understudy_operator.observe.read import read_job, read_pod
from understudy_operator.observe.read_spec import read_shared_memory
from understudy_operator.observe.store import Key, Kind, OwnerKey, Raw, Store, key_of, pool_key_of
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.malformed import Malformed, PartlyMalformed
from understudy_operator.plan.facts.pods import Pods, cached_with_pods
from understudy_operator.plan.facts.pool_facts import AutoSize, Client, Pool, PoolLauncher, PoolView, claimant
from understudy_operator.plan.facts.status import RecoveryStatus, read_pool_status
from understudy_operator.plan.manifests.pool_pods import pool_fingerprint
from understudy_operator.plan.manifests.warm_spare_pods import pool_secret_name
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault
from understudy_protocol.recovery import DRILL_REASON


def read_pool(raw: Raw) -> Pool:
    metadata, spec = raw["metadata"], raw["spec"]
    status, wrong = read_pool_status(raw)
    pool = Pool(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation", 1)),
        resource_version=metadata["resourceVersion"],
        deleting="deletionTimestamp" in metadata,
        replicas=int(spec.get("replicas", 0)),
        template=_template(spec.get("template")),
        auto_size=_auto_size(spec["autoSize"]) if "autoSize" in spec else None,
        topology_key=spec.get("topologyKey", ""),
        launcher=_launcher(spec["launcher"]) if "launcher" in spec else None,
        status=status,
    )
    if wrong:
        raise PartlyMalformed(wrong, pool)
    return pool


def _template(template: Any) -> Raw:
    if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
        raise Malformed("spec.template: expected a pod template")
    return template


def view_of(store: Store, keyring: Keyring, namespace: str, name: str) -> PoolView:
    """The pool of that name, as jobs of the namespace see it."""
    pool = store.fact(Kind.POOL, (namespace, name), read_pool)
    if pool is None:
        return PoolView(name, False)
    wanted = 0 if pool.deleting else pool.replicas
    if pool.auto_size is not None and not pool.deleting:
        wanted = pool.auto_size.least if pool.status.desired is None else pool.status.desired
    owner = (namespace, pool.uid)
    pods = pods_of_pool(store, owner)
    return PoolView(name, True, wanted, pool_fingerprint(pool), pods, pool, pool_secret_name(pool, keyring))


def pods_of(store: Store, owner: OwnerKey) -> Pods:
    """All pods that concern this job or pool: one object until one of them changes."""
    return store.facts_of_job(Kind.POD, owner, read_pod, Pods)


def split(pods: Pods, owner_uid: str) -> tuple[Pods, Pods]:
    """The owner's pods, and the pods that only concern it."""
    return _own(pods, owner_uid), _others(pods, owner_uid)


@cached_with_pods
def _own(pods: Pods, owner_uid: str) -> Pods:
    return pods.where(lambda pod: pod.owner == owner_uid)


@cached_with_pods
def _others(pods: Pods, owner_uid: str) -> Pods:
    return pods.where(lambda pod: pod.owner != owner_uid)


def pods_of_pool(store: Store, pool: OwnerKey) -> Pods:
    """The pool's own pods, without jobs' pods that replace one."""
    return split(pods_of(store, pool), pool[1])[0]


def pods_from_pool(store: Store, pool: OwnerKey) -> Pods:
    """Jobs' pods that were created to replace a pod of the pool."""
    return split(pods_of(store, pool), pool[1])[1]


def claimed_pods(store: Store, key: Key) -> tuple[Pod, ...]:
    """Pods of the pool of that name that jobs have claimed, even if the pool is gone."""
    read = (store.fact(Kind.POD, pod, read_pod) for pod in store.pods_of_pool(key))
    return tuple(pod for pod in read if pod is not None and claimant(pod))


def claimants(store: Store, namespace: str) -> frozenset[str]:
    """Uids of the namespace's jobs that may still need their claims: also of those that the store does not keep."""
    found = (store.get(Kind.JOB, key) for key in store.keys_in(Kind.JOB, namespace))
    jobs = [raw for raw in found if raw is not None]
    kept = {str(raw["metadata"].get("uid", "")) for raw in jobs if _may_want_claims(store, raw)}
    malformed = (entry for entry in store.malformed(Kind.JOB) if entry.namespace == namespace)
    return frozenset(kept | {x.uid for x in malformed if store.get(Kind.JOB, (namespace, x.name)) is None})


def clients(store: Store, pool: Pool) -> tuple[Client, ...]:
    """The jobs that name the pool."""
    found = list[Client]()
    for job in _jobs_in(store, pool.namespace):
        if _pool_named_by(job) == (pool.namespace, pool.name):
            with store.contain_errors(Kind.JOB, store.get(Kind.JOB, (job.namespace, job.name)) or {}):
                found.append(_client(store, job))
    return tuple(found)


class JobForPools(NamedTuple):
    """What the plans of pools read of a job, apart from its pods."""

    uid: str
    may_want_claims: bool
    pool: Key  # that it names
    recoveries: tuple[RecoveryStatus, ...]


def job_for_pools(store: Store, key: Key) -> JobForPools | None:
    """None if there is no such TrainingJob."""
    raw = store.get(Kind.JOB, key)
    if raw is None:
        return None
    job, uid = store.fact(Kind.JOB, key, read_job), str(raw["metadata"].get("uid", ""))
    if job is None:
        return JobForPools(uid, may_want_claims=True, pool=(key[0], ""), recoveries=())
    return JobForPools(uid, _may_want_claims(store, raw), _pool_named_by(job), job.status.recoveries)


def _jobs_in(store: Store, namespace: str) -> list[Job]:
    found = (store.fact(Kind.JOB, key, read_job) for key in store.keys_in(Kind.JOB, namespace))
    return [job for job in found if job is not None]


def _client(store: Store, job: Job) -> Client:
    pods = pods_of(store, (job.namespace, job.uid))
    failures = tuple(
        (entry.cause.node, parse_time(entry.detected_at))
        for entry in job.status.recoveries
        if entry.fault is Fault.NODE and not entry.reason.startswith(DRILL_REASON)
    )
    return Client(frozenset(pod.node for pod in pods if pod.node and pod.alive), failures)


def _pool_named_by(job: Job) -> Key:
    return job.namespace, "" if job.spec.world is None else job.spec.world.pool


def _may_want_claims(store: Store, raw: Raw) -> bool:
    """True for a job that cannot be read."""
    job = store.fact(Kind.JOB, key_of(raw), read_job)
    return job is None or not (job.terminal or job.spec.suspend or job.deleting)


def _launcher(spec: Raw) -> PoolLauncher:
    return PoolLauncher(
        container=spec.get("container", ""),
        nproc_per_node=int(spec.get("nprocPerNode", 1)),
        zygote=bool(spec.get("forkServer", True)),
        preload=tuple(spec["preload"]) if "preload" in spec else None,
        warmup=tuple(spec.get("warmup", {}).get("command", ())),
        shared_memory=read_shared_memory(spec),
    )


def _auto_size(spec: Raw) -> AutoSize:
    rate = spec.get("failuresPerNodeDay")
    return AutoSize(
        nodes=int(spec["nodes"]) if "nodes" in spec else None,
        failures_per_node_day=float(rate) if rate else None,
        least=int(spec.get("minReplicas", 1)),
        most=int(spec.get("maxReplicas", 16)),
    )


def interested_jobs(store: Store, raw: Raw) -> list[Key]:
    """The jobs that a pool's pod concerns: the job that has claimed it, and the jobs that may claim from that pool."""
    pool, claimed_by = pool_key_of(raw), raw["metadata"].get("labels", {}).get(names.LABEL_CLAIMED_BY_UID, "")
    jobs = _jobs_in(store, raw["metadata"].get("namespace", ""))
    return [(job.namespace, job.name) for job in jobs if job.uid == claimed_by or _pool_named_by(job) == pool]

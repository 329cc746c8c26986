"""The manifest of a warm spare, from the builder of jobs' own spares; and the Secret with its pool's key.

The Secret's name contains an id of the key. So the Secret that a spare mounts shows whether it was created under
another master secret; such spares are replaced.

The pool stands in for a job that has no name yet: both manifests have the same content, so comparing.py can decide
whether a job can use a spare. The differences: the sidecar gets the pool, mounts the pool's key instead of a job's key
and facts, and answers the readiness probe; the launcher gets the names of the template's variables. The pod has no
hostname of its own.
"""

import hashlib
import json
from typing import Any

from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.ownership import POOL_KIND, reference
from understudy_operator.plan.facts.pool_facts import Pool, PoolLauncher
from understudy_operator.plan.facts.spec import JobSpec, Network, ReplicatedJob, World
from understudy_operator.plan.facts.status import JobStatus
from understudy_operator.plan.manifests.job_pods import INDEX_VARIABLE
from understudy_operator.plan.manifests.pods import pod_manifest, remove_private_mounts, trainer_of, volumes
from understudy_protocol import pod as names


def warm_spec(pool: Pool, sidecar_image: str, secret: str, serial: str = "") -> dict[str, Any]:
    """The spec of a pod of a pool with a launcher. secret: the name of the Secret with the pool's key. serial: its port
    with hostNetwork depends on it.
    """
    job = _as_job(pool)
    manifest = pod_manifest(job, index=None, serial=serial, facts="", sidecar_image=sidecar_image)
    spec: dict[str, Any] = manifest["spec"]
    del spec["hostname"]
    remove_private_mounts(spec)  # pools are not validated, so nothing has rejected these mounts
    own = {volume["name"]: volume for volume in volumes(job, (secret,))}
    spec["volumes"] = [own.get(volume["name"], volume) for volume in spec["volumes"]]
    sidecar = spec["initContainers"][0]
    sidecar["env"].insert(0, {"name": names.ENV_POOL, "value": pool.uid})
    sidecar["readinessProbe"] = {
        "httpGet": {"path": "/ready", "port": sidecar["startupProbe"]["httpGet"]["port"]},
        "periodSeconds": 2,
        "failureThreshold": 1,
    }
    trainer = trainer_of(spec, launcher_of(pool).container)
    trainer["env"].append({"name": names.ENV_TEMPLATE_VARIABLES, "value": json.dumps(sorted(plain_variables(trainer)))})
    return spec


def plain_variables(trainer: dict[str, Any]) -> dict[str, str]:
    """The trainer container's variables with a value in the manifest, without the operator's own."""
    variables = trainer.get("env", ())
    plain = {variable["name"]: str(variable.get("value", "")) for variable in variables if "valueFrom" not in variable}
    return {name: value for name, value in plain.items() if not _is_the_operators(name)}


def _is_the_operators(name: str) -> bool:
    return name == INDEX_VARIABLE or (name.startswith(names.VARIABLES_PREFIX) and name != names.ENV_AUTOMATIC_STEPS)


def launcher_of(pool: Pool) -> PoolLauncher:
    assert pool.launcher is not None, "it makes warm spares"
    return pool.launcher


def pool_secret_name(pool: Pool, keyring: Keyring) -> str:
    """ "" if the pool's spares only reserve places, and so need no key. No Secret of a job ends in .pool."""
    if pool.launcher is None:
        return ""
    text = f"id of the key {keyring.of_pool(pool.namespace, pool.uid)}"  # the digest does not reveal the key
    return f"{pool.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.pool"


def secret_manifest(pool: Pool, keyring: Keyring) -> dict[str, Any]:
    key = keyring.of_pool(pool.namespace, pool.uid)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": pool_secret_name(pool, keyring),
            "namespace": pool.namespace,
            "labels": {names.LABEL_POOL: pool.name, names.LABEL_JOB_UID: pool.uid},
            "ownerReferences": [reference(POOL_KIND, pool.name, pool.uid)],
        },
        "immutable": True,
        "stringData": {names.KEY_FILE: key, names.OPERATOR_KEY_FILE: keyring.operator_public()},
    }


def _as_job(pool: Pool) -> Job:
    launcher = launcher_of(pool)
    group = ReplicatedJob("pool", {"spec": {"template": pool.template}})
    world = World(
        groups=(group,),
        nproc_per_node=launcher.nproc_per_node,
        container=launcher.container,
        zygote=launcher.zygote,
        preload=launcher.preload,
        warmup=launcher.warmup,
        shared_memory=launcher.shared_memory,
    )
    spec = JobSpec(replicated_jobs=(group,), world=world, network=Network(hostnames=False))
    identity = (pool.namespace, pool.name, pool.uid, pool.generation, pool.resource_version, pool.deleting)
    return Job(
        *identity,
        created_at=0.0,
        completed_at=None,
        spec=spec,
        status=JobStatus(),
        sidecar_settings=pool.sidecar_settings,
    )

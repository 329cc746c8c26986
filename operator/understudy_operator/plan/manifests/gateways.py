"""The gateway in front of each rollout server: a native sidecar of its pod, and the workers' access to it.

Rules: gateways and workers share a token, which has its own Secret: a gateway's node cannot read the membership key.
The token is the same in all attempts, because rollouts go on when only the world restarts. Workers get the naming
scheme of rollouts instead of their addresses: a variable with a thousand of them would be too long. A gateway's record
of its server's weights is in a memory-backed volume: it outlives the container, but not the pod and its server.
"""

import json
from typing import Any

from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.spec import ReplicatedJob, RolloutGateway
from understudy_operator.plan.manifests.metadata import subdomain
from understudy_operator.plan.manifests.object_names import rollout_secret_name
from understudy_operator.plan.manifests.podspec import restricted_security_context, startup_probe
from understudy_protocol import pod as names

PYTHON = "/opt/understudy/bin/python"  # of the sidecar's image
MODULE = "understudy_rollout.gateway"
TOKEN_PATH = f"{names.ROLLOUT_FOLDER}/{names.ROLLOUT_TOKEN_FILE}"
STATE_FILE = f"{names.GATEWAY_FOLDER}/weights.json"
STATE_SIZE = "1Mi"
STATE_PATH = "/understudy/v1/weights"  # answers once the gateway listens, in any state of the server


def gateway_of(job: Job, group: ReplicatedJob) -> RolloutGateway | None:
    rollouts = job.spec.rollouts
    return rollouts.gateway if rollouts is not None and group.name in rollouts.groups else None


def add_gateway(spec: dict[str, Any], job: Job, group: ReplicatedJob, image: str) -> None:
    """Add a gateway to the spec of a rollout's pod; other pods stay as they are."""
    gateway = gateway_of(job, group)
    if gateway is None:
        return
    kept = {"name": names.GATEWAY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": STATE_SIZE}}
    spec["volumes"] = [*spec.get("volumes", ()), _volume(job), kept]
    spec["initContainers"] = [_container(job, gateway, image), *spec.get("initContainers", ())]


def add_to_worker(spec: dict[str, Any], trainer: dict[str, Any], job: Job) -> None:
    """The volume and variables with which a trainer's pod updates the rollouts, and reports it."""
    rollouts = job.spec.rollouts
    if rollouts is None:
        return
    variables = {names.ENV_ROLLOUTS_SOCKET: f"{names.SHARED_FOLDER}/{names.ROLLOUTS_SOCKET}"}
    if rollouts.gateway is not None:
        variables |= {names.ENV_ROLLOUTS: _directory(job, rollouts.gateway), names.ENV_ROLLOUT_TOKEN_FILE: TOKEN_PATH}
        spec["volumes"] = [*spec.get("volumes", ()), _volume(job)]
        mounts = trainer.setdefault("volumeMounts", [])
        mounts.append(_mount())
    kept = [variable for variable in trainer.get("env", ()) if variable["name"] not in variables]
    trainer["env"] = [*kept, *({"name": name, "value": value} for name, value in variables.items())]


def has_gateways(job: Job) -> bool:
    """Whether pods mount the Secret with the token."""
    return job.spec.rollouts is not None and job.spec.rollouts.gateway is not None


def _directory(job: Job, gateway: RolloutGateway) -> str:
    """The naming scheme: <job>-<replicatedJob>-<index>, with the server in pod 0."""
    assert job.spec.rollouts is not None
    directory = {
        "job": job.name,
        "domain": subdomain(job),
        "rollouts": {x.name: x.replicas for x in job.spec.replicated_jobs if x.name in job.spec.rollouts.groups},
        "gatewayPort": gateway.port,
    }
    return json.dumps(directory, separators=(",", ":"))


def _volume(job: Job) -> dict[str, Any]:
    token = {"key": names.ROLLOUT_TOKEN_KEY, "path": names.ROLLOUT_TOKEN_FILE}
    source = {"secretName": rollout_secret_name(job), "items": [token], "defaultMode": 0o444}
    return {"name": names.ROLLOUT_VOLUME, "secret": source}


def _mount() -> dict[str, Any]:
    return {"name": names.ROLLOUT_VOLUME, "mountPath": names.ROLLOUT_FOLDER, "readOnly": True}


def _container(job: Job, gateway: RolloutGateway, image: str) -> dict[str, Any]:
    options = {
        "--engine": f"http://127.0.0.1:{gateway.engine_port}",
        "--port": str(gateway.port),
        "--token-file": TOKEN_PATH,
        "--state-file": STATE_FILE,
        "--in-flight-requests": "wait" if gateway.waits_for_requests else "abort",
    }
    if gateway.initial_version:
        options["--initial-version"] = gateway.initial_version
    return {
        "name": names.GATEWAY_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "command": [PYTHON, "-m", MODULE],
        "args": [word for option in options.items() for word in option],
        "ports": [{"name": "gateway", "containerPort": gateway.port}],
        # The last mount hides the service account's token.
        "volumeMounts": [
            _mount(),
            {"name": names.GATEWAY_VOLUME, "mountPath": names.GATEWAY_FOLDER},
            {**_mount(), "mountPath": names.SERVICE_ACCOUNT_FOLDER},
        ],
        "startupProbe": startup_probe(STATE_PATH, gateway.port),
        # 2,048 client connections of at most 480 KiB each, and 50 MiB.
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": restricted_security_context(job),
    }

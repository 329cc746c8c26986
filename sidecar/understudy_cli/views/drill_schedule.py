"""The manifests of a CronJob that breaks a job regularly, with an account that has just the rights for it. Pure."""

import hashlib
import re
from typing import Any

from understudy_cli.command_errors import WrongCall
from understudy_cli.facts import INJECTED_JOB, Job
from understudy_protocol.enums import Drill

#: Of the name of a CronJob, to which its controller adds the time.
NAME_CHARACTERS = 52
_MACROS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_FIELDS = re.compile(r"[-0-9A-Za-z*/,]+(?: +[-0-9A-Za-z*/,]+){4}")


def schedule_manifests(job: Job, drill: Drill, cron: str, image: str) -> list[dict[str, Any]]:
    """Raises WrongCall."""
    if cron not in _MACROS and not _FIELDS.fullmatch(cron):
        raise WrongCall(f"--schedule {cron!r}: expected five fields, such as '0 3 * * 1' for Mondays at 3, or @weekly")
    if not image:
        raise WrongCall(
            "--schedule without --image: name an image that has understudy, such as from the wheel with [cli]"
        )
    name = _name_for(job.name, f"-drill-{drill.value.lower()}")
    metadata = {"name": name, "namespace": job.namespace}
    container = {
        "name": "drill",
        "image": image,
        "command": ["understudy", "drill", job.name, "--fault", drill.value.lower(), "--yes"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }
    pod = {
        "serviceAccountName": name,
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    is_injected = job.kind == INJECTED_JOB
    reads = ["get", "list", "watch"]
    rights = [
        _rule("understudy.dev", "injectedjobs", reads, names=[job.name])
        if is_injected
        else _rule("understudy.dev", "trainingjobs", [*reads, "patch"], names=[job.name]),
        _rule("understudy.dev", "recoveries", ["list", "watch"]),
        _rule("", "pods", ["list", "watch", *(["patch"] if is_injected else [])]),
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rights},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": job.namespace}],
        },
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": metadata,
            "spec": {
                "schedule": cron,
                "concurrencyPolicy": "Forbid",
                "startingDeadlineSeconds": 600,
                # No second try: a drill that failed has broken the job, or was rejected for a reason that stays.
                "jobTemplate": {"spec": {"backoffLimit": 0, "template": {"spec": pod}}},
            },
        },
    ]


def _name_for(job: str, suffix: str) -> str:
    """A name that is too long is cut, and gets a digest: names of other jobs may begin alike."""
    if len(job) + len(suffix) <= NAME_CHARACTERS:
        return job + suffix
    digest = hashlib.sha256(job.encode()).hexdigest()[:8]
    return f"{job[: NAME_CHARACTERS - len(suffix) - len(digest) - 1].rstrip('-.')}-{digest}{suffix}"


def _rule(group: str, resource: str, verbs: list[str], *, names: list[str] | None = None) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": [resource], "verbs": verbs} | ({"resourceNames": names} if names else {})

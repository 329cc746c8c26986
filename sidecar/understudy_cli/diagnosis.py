"""Reads the facts that `doctor` checks. Each fact is read on its own, so a missing right hides one check and not
all.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from understudy_cli import fields
from understudy_cli.api import FORBIDDEN, NOT_FOUND, Api, collection
from understudy_cli.command_errors import NoAnswer
from understudy_cli.fields import Raw
from understudy_cli.views.check_result import Unreadable
from understudy_cli.views.checks import Installation, example_job, services_of, shard_of
from understudy_cli.views.pod_checks import is_of_a_job

T = TypeVar("T")
OF_A_JOB = "understudy.dev/job-uid"
OURS = "app.kubernetes.io/name=understudy"
GROUP = "understudy.dev/v1alpha1"
ADMISSION = "admissionregistration.k8s.io/v1"
#: verb, resource, group, subresource; cluster-wide if the last is True.
_RIGHTS = (
    ("list", "trainingjobs", "understudy.dev", "", False),
    ("watch", "trainingjobs", "understudy.dev", "", False),
    ("list", "injectedjobs", "understudy.dev", "", False),
    ("list", "hotsparepools", "understudy.dev", "", False),
    ("list", "recoveries", "understudy.dev", "", False),
    ("watch", "recoveries", "understudy.dev", "", False),
    ("list", "pods", "", "", False),
    ("get", "pods", "", "log", False),
    ("list", "events", "", "", False),
    ("list", "nodes", "", "", True),
)


def examine(api: Api, namespace: str, own_version: str) -> Installation:
    """namespace: in which the account would create jobs. Raises NoAnswer if the API server does not respond at all."""
    version: Raw | Unreadable = api.get("/version")  # every account may read it
    deployments = _read(lambda: api.list(collection("apps/v1", "deployments"), OURS).items)
    webhooks = _read(lambda: _webhooks(api))
    pods = _read(lambda: _pods(api, namespace))
    return Installation(
        version=version,
        served=_read(lambda: _served(api)),
        rights=_read(lambda: _rights(api, namespace)),
        deployments=deployments,
        leases=_read(lambda: _leases(api, deployments)),
        webhooks=webhooks,
        endpoints=_read(lambda: _endpoints(api, webhooks)),
        dns=_read(lambda: _slices(api, "kube-system", "kube-dns")),
        pods=pods,
        claims=_read(lambda: _beside(pods, api, "v1", "persistentvolumeclaims")),
        policies=_read(lambda: _beside(pods, api, "networking.k8s.io/v1", "networkpolicies")),
        rejection=_rejection(api, namespace),
        own_version=own_version,
        namespace=_home(deployments),
    )


def _read(read: Callable[[], T]) -> T | Unreadable:
    try:
        return read()
    except NoAnswer as error:
        return Unreadable(str(error))


def _home(deployments: tuple[Raw, ...] | Unreadable) -> str:
    found = () if isinstance(deployments, Unreadable) else deployments
    return next((fields.text(raw, "metadata", "namespace") for raw in found), "understudy-system")


def _served(api: Api) -> list[str]:
    try:
        resources = api.get(f"/apis/{GROUP}")
    except NoAnswer as error:
        if error.status == NOT_FOUND:
            return []
        raise
    return [fields.text(entry, "name") for entry in fields.entries(resources, "resources")]


def _rights(api: Api, namespace: str) -> dict[str, bool]:
    return {
        f"{verb} {resource}{f'/{part}' if part else ''}": api.may(
            verb, resource, group, "" if is_global else namespace, part
        )
        for verb, resource, group, part, is_global in _RIGHTS
    }


def _leases(api: Api, deployments: tuple[Raw, ...] | Unreadable) -> dict[tuple[str, str], Raw | None]:
    """By namespace and Deployment of the operator: each shard has one, and the Lease of its replicas has its name."""
    found: dict[tuple[str, str], Raw | None] = {}
    for raw in () if isinstance(deployments, Unreadable) else deployments:
        namespace, name = fields.text(raw, "metadata", "namespace"), fields.text(raw, "metadata", "name")
        if shard_of(name) is not None:
            found[namespace, name] = _lease(api, namespace, name)
    return found


def _lease(api: Api, namespace: str, name: str) -> Raw | None:
    try:
        return api.get(f"{collection('coordination.k8s.io/v1', 'leases', namespace)}/{name}")
    except NoAnswer as error:
        if error.status != NOT_FOUND:
            raise
        return None


def _webhooks(api: Api) -> tuple[Raw, ...]:
    kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    return tuple(found for kind in kinds for found in api.list(collection(ADMISSION, kind), OURS).items)


def _endpoints(api: Api, webhooks: tuple[Raw, ...] | Unreadable) -> dict[str, tuple[Raw, ...]]:
    known = () if isinstance(webhooks, Unreadable) else services_of(webhooks)
    return {name: _slices(api, namespace, name) for namespace, name in known}


def _slices(api: Api, namespace: str, service: str) -> tuple[Raw, ...]:
    path = collection("discovery.k8s.io/v1", "endpointslices", namespace)
    return api.list(path, f"kubernetes.io/service-name={service}").items


def _pods(api: Api, namespace: str) -> tuple[Raw, ...]:
    """The pods of the installation and of jobs: of all namespaces, or of one if the account may not read all."""
    return _of_all_or_some(lambda space: _pods_in(api, space), (namespace,))


def _pods_in(api: Api, namespace: str) -> tuple[Raw, ...]:
    path = collection("v1", "pods", namespace)
    return (*api.list(path, OURS).items, *api.list(path, OF_A_JOB).items)


def _beside(pods: tuple[Raw, ...] | Unreadable, api: Api, group: str, resource: str) -> tuple[Raw, ...]:
    """The objects of all namespaces, or of those of the pods of jobs. Raises NoAnswer if one of these is missing: then
    an object that the account may not read would count as one that does not exist.
    """
    of_jobs = () if isinstance(pods, Unreadable) else filter(is_of_a_job, pods)
    spaces = sorted({fields.text(pod, "metadata", "namespace", limit=253) for pod in of_jobs})
    return _of_all_or_some(lambda space: api.list(collection(group, resource, space)).items, spaces)


def _of_all_or_some(objects: Callable[[str], tuple[Raw, ...]], namespaces: Sequence[str]) -> tuple[Raw, ...]:
    """objects: those of a namespace; "": of all. namespaces: those to read if the account may not read all."""
    try:
        return objects("")
    except NoAnswer as error:
        if error.status != FORBIDDEN:
            raise
        return tuple(found for namespace in namespaces for found in objects(namespace))


def _rejection(api: Api, namespace: str) -> str | Unreadable:
    try:
        if not api.may("create", "trainingjobs", "understudy.dev", namespace):
            return Unreadable(f"this account may not create TrainingJobs in namespace {namespace}")
        api.dry_run(collection(GROUP, "trainingjobs", namespace), example_job(namespace))
    except NoAnswer as error:
        return str(error) if error.status else Unreadable(str(error))
    return ""

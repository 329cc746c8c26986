"""`doctor`: the problems of an installation, and their fixes. Pure: `diagnosis` reads the facts.

Each check gets a fact, or the reason why the fact could not be read. Then the check is reported as not checked: an
account without the rights of an administrator sees a part of the installation.
"""

import base64
import binascii
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from understudy_cli import fields
from understudy_cli.fields import Raw, pem_text
from understudy_cli.views.check_result import CheckResult, Level, Unreadable
from understudy_cli.views.phrases import duration
from understudy_cli.views.pod_checks import blocked_ports, unusable_claims

#: The oldest minor version of Kubernetes 1 (docs/reference/support.md).
OLDEST_KUBERNETES = 30
KINDS = ("trainingjobs", "injectedjobs", "hotsparepools", "recoveries")
#: A leader renews its Lease every 2 s, and loses it after 15 s. The clocks of this machine and the cluster may differ.
LEASE_SILENCE_S = 60.0
#: The operator's Deployment of a release `understudy`.
OPERATOR = "understudy-operator"
_OPERATOR_NAME = re.compile(r".*-operator(?:-([0-9]+-of-[0-9]+))?")
#: Self-signed certificates are renewed a month before they expire.
CERTIFICATE_SOON_S = 7 * 86400.0
_IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_NAMED = 3  # examples in a message


@dataclass(frozen=True)
class Installation:
    """Facts about an installation. rights: by `verb resource`. leases: by namespace and Deployment of each shard; None
    if the shard has none. endpoints: EndpointSlices by the name of their Service. rejection: why the API server rejects
    a small TrainingJob; "" if it accepts it. claims, policies: PersistentVolumeClaims and NetworkPolicies, of the
    namespaces of the pods.
    """

    version: Raw | Unreadable
    served: Sequence[str] | Unreadable
    rights: Mapping[str, bool] | Unreadable
    deployments: Sequence[Raw] | Unreadable
    leases: Mapping[tuple[str, str], Raw | None] | Unreadable
    webhooks: Sequence[Raw] | Unreadable
    endpoints: Mapping[str, Sequence[Raw]] | Unreadable
    dns: Sequence[Raw] | Unreadable
    pods: Sequence[Raw] | Unreadable
    claims: Sequence[Raw] | Unreadable
    policies: Sequence[Raw] | Unreadable
    rejection: str | Unreadable
    own_version: str = ""
    namespace: str = field(default="understudy-system")


def findings(seen: Installation, now: float) -> tuple[CheckResult, ...]:
    checks = (
        _version,
        _kinds,
        _rights,
        _deployments,
        _leader,
        _webhook,
        _certificates,
        _dns,
        _images,
        _storage,
        _ports,
        _acceptance,
    )
    return tuple(finding for check in checks for finding in check(seen, now))


def _skipped(check: str, fact: Unreadable) -> Iterator[CheckResult]:
    yield CheckResult(check, Level.SKIPPED, fact.why, "run the command as a cluster administrator")


def _version(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "Kubernetes"
    if isinstance(seen.version, Unreadable):
        yield from _skipped(check, seen.version)
        return
    name = fields.text(seen.version, "gitVersion", limit=60)
    major, minor = (re.match(r"[0-9]*", fields.text(seen.version, part))[0] for part in ("major", "minor"))  # type: ignore[index]
    if major != "1" or not minor:
        yield CheckResult(check, Level.WARNING, f"version {name or 'unknown'} is not a version that Understudy knows")
    elif int(minor) < OLDEST_KUBERNETES:
        yield CheckResult(
            check,
            Level.ERROR,
            f"version {name} is older than 1.{OLDEST_KUBERNETES}",
            f"upgrade the cluster to 1.{OLDEST_KUBERNETES} or newer",
        )
    else:
        yield CheckResult(check, Level.OK, f"version {name}")


def _kinds(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "Kinds"
    if isinstance(seen.served, Unreadable):
        yield from _skipped(check, seen.served)
        return
    missing = [kind for kind in KINDS if kind not in seen.served]
    if missing:
        text = f"the API server does not serve {', '.join(missing)} of understudy.dev"
        yield CheckResult(
            check, Level.ERROR, text, "install the chart with crds.enabled=true, or apply the files of crds/"
        )
    else:
        yield CheckResult(check, Level.OK, f"{', '.join(KINDS)} are served")


def _rights(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "Your rights"
    if isinstance(seen.rights, Unreadable):
        yield from _skipped(check, seen.rights)
        return
    missing = [right for right, is_allowed in seen.rights.items() if not is_allowed]
    if missing:
        text = f"this account may not {', '.join(missing)}"
        fix = "bind the role view to the account (rbac.aggregate.enabled of the chart); `list nodes` needs another role"
        yield CheckResult(check, Level.WARNING, text, fix)
    else:
        yield CheckResult(check, Level.OK, "the account may read everything that this program shows")


def _deployments(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "Operator"
    if isinstance(seen.deployments, Unreadable):
        yield from _skipped(check, seen.deployments)
        return
    if not seen.deployments:
        text = "no Deployment has the label app.kubernetes.io/name=understudy"
        yield CheckResult(check, Level.ERROR, text, "install the chart: helm install understudy charts/understudy")
        return
    for deployment in seen.deployments:
        yield _of_deployment(check, deployment, seen.own_version)


def _of_deployment(check: str, raw: Raw, own_version: str) -> CheckResult:
    namespace, name = fields.text(raw, "metadata", "namespace"), fields.text(raw, "metadata", "name")
    available, wanted = fields.count(raw, "status", "availableReplicas"), fields.count(raw, "spec", "replicas")
    version = fields.text(raw, "metadata", "labels", "app.kubernetes.io/version", limit=40)
    text = f"Deployment {name} ({namespace}) has {available} of {wanted} replicas available"
    if not available:
        return CheckResult(check, Level.ERROR, text, f"see kubectl --namespace {namespace} describe pods")
    if available < wanted:
        return CheckResult(check, Level.WARNING, text, f"see kubectl --namespace {namespace} get pods")
    if own_version and version and version != own_version:
        text += f"; its version is {version}, and the version of this program is {own_version}"
        return CheckResult(check, Level.WARNING, text, "use the program of the operator's release")
    return CheckResult(check, Level.OK, text)


def _leader(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "Leader"
    if isinstance(seen.leases, Unreadable):
        yield from _skipped(check, seen.leases)
        return
    if not seen.deployments or isinstance(seen.deployments, Unreadable):
        return
    leases = seen.leases or {(seen.namespace, OPERATOR): None}
    for namespace, deployment in sorted(leases):
        yield _of_lease(check, deployment, leases[namespace, deployment], namespace, now)


def _of_lease(check: str, deployment: str, lease: Raw | None, namespace: str, now: float) -> CheckResult:
    shard = shard_of(deployment)
    of_shard = f" of shard {shard}" if shard else ""
    fix = f"see kubectl --namespace {namespace} logs deployment/{deployment}"
    renewed_at = None if lease is None else fields.time(lease, "spec", "renewTime")
    holder = "" if lease is None else fields.text(lease, "spec", "holderIdentity", limit=253)
    if renewed_at is None or not holder:
        return CheckResult(check, Level.ERROR, f"no replica of the operator is the leader{of_shard}", fix)
    if now - renewed_at > LEASE_SILENCE_S:
        text = f"the leader {holder}{of_shard} has not renewed its Lease for {duration(now - renewed_at)}"
        fix += ". If it is healthy, compare the clocks of this machine and the cluster"
        return CheckResult(check, Level.ERROR, text, fix)
    return CheckResult(check, Level.OK, f"{holder} is the leader{of_shard}")


def shard_of(deployment: str) -> str | None:
    """The shard in the name of the operator's Deployment, such as 0-of-2; "" for a single shard. None: the Deployment
    is not the operator's.
    """
    match = _OPERATOR_NAME.fullmatch(deployment)
    return None if match is None else match[1] or ""


def _webhook(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "Webhook"
    if isinstance(seen.webhooks, Unreadable):
        yield from _skipped(check, seen.webhooks)
        return
    if not seen.webhooks and not seen.deployments:
        return  # nothing is installed
    if not seen.webhooks:
        yield CheckResult(check, Level.OK, "the chart has no webhook (webhook.enabled is false): pods are not injected")
        return
    for namespace, service in sorted(set(_services(seen.webhooks))):
        if isinstance(seen.endpoints, Unreadable):
            yield from _skipped(check, seen.endpoints)
            return
        ready = ready_endpoints(seen.endpoints.get(service, ()))
        text = f"Service {service} ({namespace}) has {ready} ready endpoints"
        if ready:
            yield CheckResult(check, Level.OK, text)
        else:
            fix = f"see kubectl --namespace {namespace} describe pods -l app.kubernetes.io/component=webhook"
            yield CheckResult(
                check, Level.ERROR, f"{text}, so pods with the label understudy.dev/inject cannot be created", fix
            )


def _services(webhooks: Iterable[Raw]) -> Iterator[tuple[str, str]]:
    for configuration in webhooks:
        for webhook in fields.entries(configuration, "webhooks"):
            service = fields.table(webhook, "clientConfig", "service")
            if service:
                yield fields.text(service, "namespace"), fields.text(service, "name")


def services_of(webhooks: Iterable[Raw]) -> tuple[tuple[str, str], ...]:
    """Namespace and name of each Service that these webhook configurations call."""
    return tuple(sorted(set(_services(webhooks))))


def ready_endpoints(slices: Iterable[Raw]) -> int:
    """Addresses that get traffic. A missing condition `ready` means that the endpoint is ready."""
    endpoints = (endpoint for piece in slices for endpoint in fields.entries(piece, "endpoints"))
    return sum(fields.get(endpoint, "conditions", "ready") is not False for endpoint in endpoints)


def _certificates(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "Certificates"
    if isinstance(seen.webhooks, Unreadable):
        yield from _skipped(check, seen.webhooks)
        return
    for configuration in seen.webhooks:
        name = fields.text(configuration, "metadata", "name")
        for webhook in list(fields.entries(configuration, "webhooks"))[:1]:  # all of them have the same bundle
            yield _of_bundle(check, name, fields.get(webhook, "clientConfig", "caBundle"), now)


def _of_bundle(check: str, name: str, bundle: object, now: float) -> CheckResult:
    if not isinstance(bundle, str) or not bundle:
        text = f"webhook {name} has no caBundle, so the API server cannot verify the webhook"
        return CheckResult(
            check, Level.ERROR, text, "wait a minute after the installation; else see the log of the rotation's pod"
        )
    try:
        ends = authority_ends(bundle)
    except ValueError as error:
        text = f"the caBundle of webhook {name} cannot be read: {error}"
        return CheckResult(check, Level.ERROR, text, "fix webhook.certificates of the chart's values")
    if not ends:
        return CheckResult(check, Level.SKIPPED, f"the caBundle of webhook {name} contains no authority")
    left_s = max(ends) - now
    if left_s <= 0:
        text = f"the authority of webhook {name} expired {duration(-left_s)} ago"
        return CheckResult(
            check, Level.ERROR, text, "see docs/how-to/install.md#certificates, and the log of the rotation's pod"
        )
    if left_s < CERTIFICATE_SOON_S:
        text = f"the authority of webhook {name} expires in {duration(left_s)}"
        return CheckResult(
            check, Level.WARNING, text, "check that the rotation, cert-manager or your own process renews it"
        )
    return CheckResult(check, Level.OK, f"the authority of webhook {name} is valid for another {duration(left_s)}")


def authority_ends(bundle: str) -> tuple[float, ...]:
    """When the certificates of a caBundle (PEM in base64) expire, in Unix seconds. Raises ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem_text(base64.b64decode(bundle, validate=True)))
        return tuple(ssl.cert_time_to_seconds(str(each["notAfter"])) for each in context.get_ca_certs())
    except (binascii.Error, ssl.SSLError, KeyError) as error:
        raise ValueError(str(error)) from error


def _dns(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "DNS"
    if isinstance(seen.dns, Unreadable):
        yield from _skipped(check, seen.dns)
        return
    ready = ready_endpoints(seen.dns)
    if ready:
        yield CheckResult(check, Level.OK, f"the cluster's DNS has {ready} ready endpoints")
    elif not seen.dns:
        text = "there is no Service kube-dns (kube-system), so the DNS of the cluster cannot be checked"
        yield CheckResult(check, Level.WARNING, text, "check that pods can look up the names of Services")
    else:
        text = "Service kube-dns (kube-system) has no ready endpoint: new pods cannot find their coordinator"
        yield CheckResult(check, Level.ERROR, text, "see kubectl --namespace kube-system get pods -l k8s-app=kube-dns")


def _images(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "Images"
    if isinstance(seen.pods, Unreadable):
        yield from _skipped(check, seen.pods)
        return
    failing: dict[str, list[str]] = {}
    for pod in seen.pods:
        for image in _images_that_fail(pod):
            failing.setdefault(image, []).append(fields.text(pod, "metadata", "name"))
    for image, names in sorted(failing.items()):
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        text = f"the image {image} cannot be pulled: pods {', '.join(sorted(names)[:_NAMED])}{more}"
        yield CheckResult(check, Level.ERROR, text, "check the name of the image, and imagePullSecrets")
    if not failing:
        yield CheckResult(check, Level.OK, f"no image fails in {len(seen.pods)} pods")


def _images_that_fail(pod: Raw) -> Iterator[str]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in fields.entries(pod, "status", kind):
            if fields.text(container, "state", "waiting", "reason") in _IMAGE_REASONS:
                yield fields.text(container, "image", limit=512)


def _storage(seen: Installation, now: float) -> Iterator[CheckResult]:
    fine = "the volume claims of all pods of jobs can be used"
    return _of_pods("Storage", seen.pods, seen.claims, unusable_claims, fine)


def _ports(seen: Installation, now: float) -> Iterator[CheckResult]:
    fine = "no NetworkPolicy separates the pods of a job"
    return _of_pods("Ports", seen.pods, seen.policies, blocked_ports, fine)


def _of_pods(
    check: str,
    pods: Sequence[Raw] | Unreadable,
    others: Sequence[Raw] | Unreadable,
    problems: Callable[[str, Sequence[Raw], Sequence[Raw]], Iterator[CheckResult]],
    fine: str,
) -> Iterator[CheckResult]:
    """others: the objects with which the check compares the pods."""
    if isinstance(pods, Unreadable):
        yield from _skipped(check, pods)
    elif isinstance(others, Unreadable):
        yield from _skipped(check, others)
    else:
        yield from tuple(problems(check, pods, others)) or (CheckResult(check, Level.OK, fine),)


def _acceptance(seen: Installation, now: float) -> Iterator[CheckResult]:
    check = "Admission"
    if isinstance(seen.rejection, Unreadable):
        yield CheckResult(check, Level.SKIPPED, seen.rejection.why)
    elif seen.rejection:
        text = f"the API server rejects a small TrainingJob (a dry run): {seen.rejection}"
        yield CheckResult(check, Level.ERROR, text, "see docs/how-to/troubleshooting.md#the-job-is-not-created")
    else:
        yield CheckResult(check, Level.OK, "the API server accepts a small TrainingJob (a dry run)")


def example_job(namespace: str) -> Raw:
    """A small job with a spare, for the dry run."""
    trainer = {"name": "trainer", "image": "example.com/trainer:1", "command": ["python3", "train.py"]}
    template = {"spec": {"parallelism": 2, "completions": 2, "template": {"spec": {"containers": [trainer]}}}}
    return {
        "apiVersion": "understudy.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "understudy-doctor", "namespace": namespace},
        "spec": {
            "launcher": {"nprocPerNode": 1},
            "spares": {"replicas": 1},
            "replicatedJobs": [{"name": "trainer", "template": template}],
        },
    }

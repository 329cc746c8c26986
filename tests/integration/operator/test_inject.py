"""Injection against a real API server: the chart's webhook configuration, the real webhook, the real operator.

No controller creates pods of Jobs here: the test does.
"""

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from tests.integration.operator.conftest import ROOT, SYSTEM, must
from tests.integration.operator.kube import Kube
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.plan.injection.injected_pods import inject
from understudy_protocol import pod as names
from understudy_webhook import openssl
from understudy_webhook.serving import Serving

NO_LIMIT = 2**31 - 1
COORDINATOR_PORT = 8478

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

Raw = dict[str, Any]
IMAGE = "example.com/sidecar:1"
WEBHOOK = "understudy-webhook"
ROTATION = "understudy-rotation"


def rendered(api_server: "ApiServer", *more: str) -> list[Raw]:
    """The chart's objects for the webhook, and of these templates, without pods and Services."""
    chart = ["template", "understudy", str(ROOT / "charts" / "understudy"), "--namespace", SYSTEM]
    shown = [word for name in ("webhook", *more) for word in ("--show-only", f"templates/{name}.yaml")]
    result = subprocess.run(
        [api_server.binaries / "helm", *chart, *shown],
        capture_output=True,
        text=True,
        check=True,
    )
    items = [item for item in yaml.safe_load_all(result.stdout) if item]
    return [item for item in items if item["kind"] not in ("Deployment", "Service", "PodDisruptionBudget")]


def apply(api_server: "ApiServer", items: list[Raw]) -> None:
    body = {"apiVersion": "v1", "kind": "List", "items": items}
    must(api_server.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(body)))


@pytest.fixture
async def webhook(api_server: "ApiServer", kube: Kube) -> AsyncIterator[None]:
    """The webhook at a URL of this machine, otherwise as the chart configures it, for the test's namespace."""
    made = await openssl.make_certificate(["localhost"], 86400.0)
    with tempfile.TemporaryDirectory() as folder:
        files = {"tls.crt": made.certificate, "tls.key": made.key}
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        serving = Serving(IMAGE)
        serving.load(Path(folder) / "tls.crt", Path(folder) / "tls.key")
    port = await serving.listen(0)
    configurations = [item for item in rendered(api_server) if item["kind"].endswith("WebhookConfiguration")]
    for configuration in configurations:
        for entry in configuration["webhooks"]:
            path = entry["clientConfig"]["service"]["path"]
            bundle = base64.b64encode(made.authority.encode()).decode()
            entry["clientConfig"] = {"url": f"https://localhost:{port}{path}", "caBundle": bundle}
            entry["failurePolicy"] = "Fail"  # so that a failed check is visible
            # The API server is the session's, and other tests' namespaces have no webhook.
            entry.setdefault("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}})
    await kube.call(
        "PATCH", f"/api/v1/namespaces/{kube.namespace}", {"metadata": {"labels": {names.LABEL_INJECT: "enabled"}}}
    )
    await asyncio.to_thread(apply, api_server, configurations)
    await kube.until("the API server calls the webhook", lambda: calls(kube))
    yield
    for configuration in configurations:
        kind = f"{configuration['kind'].lower()}s"
        await kube.call("DELETE", f"/apis/admissionregistration.k8s.io/v1/{kind}/{WEBHOOK}")
    await serving.close()


async def calls(kube: Kube) -> bool:
    made = await kube.call("POST", "pods", a_pod(kube, 0), dryRun="All")
    return "initContainers" in made["spec"]


def a_job(**spec: Any) -> Raw:
    metadata = golden_pod("job")["metadata"]
    annotations = {name: text for name, text in metadata["annotations"].items() if names.GROUP in name}
    container = golden_pod("job")["spec"]["containers"][1] | {"volumeMounts": []}
    template = {
        "metadata": {"labels": {names.LABEL_INJECT: "enabled"}, "annotations": annotations},
        "spec": {"restartPolicy": "OnFailure", "containers": [container]},
    }
    whole = {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {**whole, **spec}}


def a_pod(kube: Kube, index: int, uid: str = "none") -> Raw:
    """The pod as the Job controller creates it."""
    raw = golden_pod("job")
    labels = raw["metadata"]["labels"] | {"batch.kubernetes.io/controller-uid": uid}
    annotations = raw["metadata"]["annotations"] | {"batch.kubernetes.io/job-completion-index": str(index)}
    raw["metadata"] = {
        "name": f"train-{index}-{uid[:5]}",
        "namespace": kube.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [raw["metadata"]["ownerReferences"][0] | {"uid": uid}],
    }
    return raw


async def injected(kube: Kube) -> tuple[Raw, list[Raw]]:
    """The Job, and its pods."""
    job = await kube.call("POST", "jobs", a_job())
    return job, await pods_of(kube, job)


async def pods_of(kube: Kube, job: Raw) -> list[Raw]:
    return [await kube.call("POST", "pods", a_pod(kube, index, job["metadata"]["uid"])) for index in range(3)]


async def test_pods_of_a_job_get_all_objects_that_they_wait_for(kube: Kube, webhook: None) -> None:
    job, pods = await injected(kube)
    uid = job["metadata"]["uid"]
    for pod in pods:
        assert pod["spec"]["initContainers"][0]["name"] == names.SIDECAR_CONTAINER
        assert pod["spec"]["restartPolicy"] == "Never"
        assert pod["metadata"]["labels"][names.LABEL_JOB_UID] == uid

    async def secret() -> Raw | None:
        found = [x for x in await kube.list("secrets") if x["metadata"]["name"] == f"job.train-{uid}-membership"]
        return found[0] if found else None

    made = await kube.until("the pods' Secret", secret)
    assert made is not None
    result = json.loads(base64.b64decode(made["data"][names.JOB_FILE]))
    (service,) = [x for x in await kube.list("services") if x["metadata"]["name"] == "job-train-understudy"]
    assert result["coordinator"] == f"{service['spec']['clusterIP']}:{COORDINATOR_PORT}"
    assert (result["shape"]["actives"], result["shape"]["nproc_per_node"], result["shape"]["uid"]) == (2, 8, uid)

    async def limit() -> bool:
        return bool((await kube.call("GET", "jobs/train"))["spec"]["backoffLimit"] == NO_LIMIT)

    await kube.until("the Job leaves faults to the ladder", limit)

    async def status() -> Raw | None:
        found: Raw | None = (await kube.call("GET", "injectedjobs/job.train")).get("status")
        return found

    is_in_status = await kube.until("its status", status)
    assert is_in_status is not None
    assert (is_in_status["phase"], is_in_status["members"]["desired"], is_in_status["spares"]["desired"]) == (
        "Pending",
        2,
        1,
    )


async def test_a_second_mutation_changes_nothing(kube: Kube, webhook: None) -> None:
    first = await kube.call("POST", "pods", a_pod(kube, 0), dryRun="All")
    again = {**a_pod(kube, 0), "spec": first["spec"]}
    again["metadata"] |= {"labels": first["metadata"]["labels"], "annotations": first["metadata"]["annotations"]}
    second = await kube.call("POST", "pods", again, dryRun="All")
    assert second["spec"] == first["spec"]


async def test_other_pods_are_not_touched(kube: Kube, webhook: None) -> None:
    raw = a_pod(kube, 0)
    del raw["metadata"]["labels"][names.LABEL_INJECT]
    made = await kube.call("POST", "pods", raw, dryRun="All")
    assert [x["name"] for x in made["spec"]["initContainers"]] == ["fetch"]


@pytest.mark.attack("E2", "asks for injection in a namespace that has not opted in", before="refused, too")
async def test_a_pod_in_a_namespace_without_the_label_is_not_touched(kube: Kube, webhook: None) -> None:
    other = f"{kube.namespace}-other"
    await kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": other}})
    # when a user labels a pod there
    raw = a_pod(kube, 0)
    raw["metadata"]["namespace"] = other
    made = await kube.call("POST", f"/api/v1/namespaces/{other}/pods", raw)
    # then the pod is unchanged
    assert [x["name"] for x in made["spec"]["initContainers"]] == ["fetch"]
    assert made["metadata"]["labels"] == raw["metadata"]["labels"]
    # and gets no Secret, while pods of a later Job have theirs
    await injected(kube)
    await kube.until("the Secret of the Job", lambda: kube.list("secrets"))
    assert await kube.list(f"/api/v1/namespaces/{other}/secrets") == []


@pytest.mark.attack("D2", "calls the webhook as a pod, with the review of a pod", before="changed nothing, too")
async def test_a_caller_that_is_not_the_api_server_gets_an_answer_and_changes_nothing(
    kube: Kube, webhook: None
) -> None:
    # given a pod that is not injected
    raw = a_pod(kube, 0)
    del raw["metadata"]["labels"][names.LABEL_INJECT]
    existing = await kube.call("POST", "pods", raw)
    # when a process without any right sends the webhook a review of this pod, with the label
    configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    (entry,) = (await kube.call("GET", f"{configurations}/{WEBHOOK}"))["webhooks"]
    trust = ssl.create_default_context(cadata=base64.b64decode(entry["clientConfig"]["caBundle"]).decode())
    asked = {"uid": "1", "kind": {"kind": "Pod"}, "namespace": kube.namespace, "object": a_pod(kube, 0)}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
        session.post(entry["clientConfig"]["url"], json=review) as answer,
    ):
        response = (await answer.json())["response"]
    # then it gets the patch as an answer
    assert response["allowed"]
    assert "understudy-sidecar" in base64.b64decode(response["patch"]).decode()
    # and has changed nothing: once a Job that was injected later has its Secret, only this Job has objects
    await injected(kube)
    await kube.until("the Secret of the Job", lambda: kube.list("secrets"))
    assert await kube.call("GET", f"pods/{existing['metadata']['name']}") == existing
    assert len(await kube.list("injectedjobs")) == len(await kube.list("secrets")) == 1


async def test_a_pod_that_cannot_be_injected_is_refused_with_the_reason(kube: Kube, webhook: None) -> None:
    raw = a_pod(kube, 0)
    raw["metadata"]["annotations"]["understudy.dev/nproc-per-node"] = "many"
    with pytest.raises(AssertionError, match=r"understudy\.dev/nproc-per-node is 'many': set it to the number"):
        await kube.call("POST", "pods", raw)


async def test_a_job_that_cannot_be_injected_is_rejected_when_it_is_applied(kube: Kube, webhook: None) -> None:
    with pytest.raises(AssertionError, match="completionMode has to be Indexed"):
        await kube.call("POST", "jobs", a_job(completionMode="NonIndexed"))


async def test_without_validation_a_job_that_cannot_be_injected_gets_an_event(kube: Kube) -> None:
    # Given a Job that no webhook has checked, and its pods as the webhook would have injected them
    job = await kube.call("POST", "jobs", a_job(backoffLimitPerIndex=1))
    await kube.call("POST", "pods", inject(a_pod(kube, 0, job["metadata"]["uid"]), IMAGE).pod)

    async def is_reported() -> Raw | None:
        found = [event for event in await kube.list("events") if event["reason"] == "NotInjected"]
        return found[0] if found else None

    event = await kube.until("an event has the reason", is_reported)
    assert event is not None
    assert event["regarding"]["name"] == "train"
    assert "backoffLimitPerIndex" in event["note"]


async def test_an_injectedjobs_spec_describes_its_target_and_cannot_be_changed(kube: Kube, webhook: None) -> None:
    await injected(kube)

    async def exists() -> bool:
        return bool(await kube.list("injectedjobs"))

    await kube.until("the InjectedJob", exists)
    with pytest.raises(AssertionError, match="spec is immutable"):
        await kube.call("PATCH", "injectedjobs/job.train", {"spec": {"members": 3}})


# The keeper of the certificate in its own process, with only the chart's rights ---------------------------------------


@pytest.fixture
def configured(api_server: "ApiServer", kubeconfig: Path, tmp_path: Path) -> Iterator[Path]:
    """The chart's objects, and the kubeconfig of its service account."""
    items = rendered(api_server, "rotation", "policies")
    for item in items:
        for entry in item.get("webhooks", ()):  # the API server must not call this webhook
            entry["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": "nowhere"}}
    apply(api_server, items)
    token = must(api_server.kubectl("-n", SYSTEM, "create", "token", ROTATION, "--duration=1h")).strip()
    configuration = json.loads(kubeconfig.read_text())
    configuration["users"][0]["user"] = {"token": token}
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(configuration))
    yield file
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        api_server.kubectl("delete", kind, WEBHOOK)
    api_server.kubectl("-n", SYSTEM, "delete", "secret", f"{WEBHOOK}-tls", "--ignore-not-found")


async def test_the_keeper_creates_a_trusted_certificate_with_the_rights_of_the_chart(
    configured: Path, kube: Kube, tmp_path: Path
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "KUBECONFIG": str(configured),
        "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'sidecar'}",
        "PYTHONWARNINGS": "ignore",
        "UNDERSTUDY_WEBHOOK": f"{SYSTEM}/{WEBHOOK}",
        "TMPDIR": str(tmp_path),
    }
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220 (it is only started)
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "understudy_webhook.keeper"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        configuration = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{WEBHOOK}"

        async def trusted() -> str:
            assert process.poll() is None, log.read_text()
            (webhook,) = (await kube.call("GET", configuration))["webhooks"]
            return str(webhook["clientConfig"].get("caBundle", ""))

        async def made() -> Raw | None:
            secrets = (await kube.call("GET", f"/api/v1/namespaces/{SYSTEM}/secrets"))["items"]
            return next((raw for raw in secrets if raw["metadata"]["name"] == f"{WEBHOOK}-tls"), None)

        bundle = await kube.until("the API server trusts it", trusted)
        secret = await kube.until("the certificate is in the Secret", made)
        assert secret is not None
        assert secret["data"]["ca.crt"] == bundle
        assert await openssl.run("verify", "-CAfile", str(authority(tmp_path, bundle)), stdin=pem(secret)) != ""
    finally:
        process.terminate()
        code = await asyncio.to_thread(process.wait, 20)
    assert code == 0, log.read_text()
    assert "is forbidden" not in log.read_text()


def authority(folder: Path, bundle: str) -> Path:
    file = folder / "authority.pem"
    file.write_bytes(base64.b64decode(bundle))
    return file


def pem(secret: Raw) -> str:
    return base64.b64decode(secret["data"]["tls.crt"]).decode()

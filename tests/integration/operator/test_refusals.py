"""Rejections by the API server that are not the job's error: each is reported in a condition, and ends."""

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.training import NAME, Training
from tests.ports import free_port
from understudy_webhook import openssl

pytestmark = pytest.mark.timeout(120)


async def blocked(training: Training, kube: Kube, reason: str) -> str:
    """The message of condition Blocked, once it is True for that reason."""

    async def is_reported() -> str:
        found = [x for x in (await training.status()).get("conditions", ()) if x["type"] == "Blocked"]
        return found[0]["message"] if found and (found[0]["status"], found[0]["reason"]) == ("True", reason) else ""

    return await kube.until(f"condition Blocked, {reason}", is_reported)


async def until_free(training: Training, kube: Kube) -> None:
    async def free() -> bool:
        return await training.condition("Blocked") == ("False", "")

    await kube.until("condition Blocked is False", free)


async def set_quota(kube: Kube, hard: int) -> None:
    """As the quota controller does, which does not run here."""
    quota = {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(hard)}}}
    if "pods" in {raw["metadata"]["name"] for raw in await kube.list("resourcequotas")}:
        await kube.call("PATCH", "resourcequotas/pods", {"spec": quota["spec"]})
    else:
        await kube.call("POST", "resourcequotas", quota)
    used = {"hard": {"pods": str(hard)}, "used": {"pods": str(len(await kube.list("pods")))}}
    await kube.call("PATCH", "resourcequotas/pods/status", {"status": used})


async def test_a_quota_that_ends_after_some_pods_is_reported_and_the_rest_is_created_when_there_is_room(
    training: Training, kube: Kube
):
    # given room for two of three pods
    await set_quota(kube, 2)
    await training.apply()

    # then two are created, and the condition reports the missing one; the job is not invalid
    message = await blocked(training, kube, "QuotaExceeded")
    assert "exceeded quota: pods" in message
    assert len(await training.pods()) == 2
    assert await training.condition("Invalid") == ("False", "")
    assert "exceeded quota" in (await training.condition("Ready"))[1]

    # when there is room
    await set_quota(kube, 5)

    # then the third one is created
    assert len(await training.until_pods(3)) == 3
    await until_free(training, kube)
    assert len(await training.events("Rejected")) == 1


@asynccontextmanager
async def in_force(kube: Kube, **bodies: Raw) -> AsyncIterator[None]:
    """Objects of these kinds (plural), enforced in all namespaces."""
    for plural, body in bodies.items():
        await kube.call("POST", f"{ADMISSION}/{plural}", body)
    try:
        yield
    finally:
        for plural, body in bodies.items():
            await kube.call("DELETE", f"{ADMISSION}/{plural}/{body['metadata']['name']}")


ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def here(kube: Kube) -> Raw:
    return {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}


PODS = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}


def of_pods(kube: Kube, name: str, client: Raw) -> Raw:
    """The configuration of a webhook for this namespace's new pods."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"{name}-{kube.namespace}"},
        "webhooks": [
            {
                "name": name,
                "clientConfig": client,
                "rules": [PODS],
                "failurePolicy": "Fail",
                "timeoutSeconds": 1,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "namespaceSelector": here(kube),
            }
        ],
    }


def a_policy(kube: Kube, name: str, rule: Raw, expression: str, message: str) -> tuple[Raw, Raw]:
    """A ValidatingAdmissionPolicy for this namespace, and its binding."""
    kind, name = "admissionregistration.k8s.io/v1", f"{name}-{kube.namespace}"
    policy = {
        "apiVersion": kind,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here(kube)},
            "validations": [{"expression": expression, "message": message}],
        },
    }
    binding = {
        "apiVersion": kind,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return policy, binding


async def until_refused(kube: Kube, words: str) -> None:
    """The API server needs a moment to apply a new rule."""

    async def refused() -> bool:
        pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        try:
            await kube.call("POST", "pods", pod, dryRun="All")
        except AssertionError as error:
            return words in str(error)
        return False

    await kube.until(f"pods are refused: {words}", refused)


async def test_a_webhook_that_does_not_answer_is_reported_and_delays_the_job(training: Training, kube: Kube):
    webhook = of_pods(kube, "down.example.com", {"url": f"https://127.0.0.1:{free_port()}/"})
    async with in_force(kube, validatingwebhookconfigurations=webhook):
        await training.apply()
        message = await blocked(training, kube, "WebhookUnavailable")
        assert 'failed calling webhook "down.example.com"' in message
        assert await training.pods() == []
    await training.until_pods(3)
    await until_free(training, kube)


@asynccontextmanager
async def refusing(folder: Path, reason: str) -> AsyncIterator[tuple[str, str]]:
    """A webhook that denies everything: its URL, and the base64 of its CA bundle."""
    made = await openssl.make_certificate(["localhost"], 86400.0)
    (folder / "tls.crt").write_text(made.certificate)
    (folder / "tls.key").write_text(made.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    async def refuse(request: web.Request) -> web.Response:
        review = await request.json()
        no = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": reason}}
        return web.json_response({key: review[key] for key in ("apiVersion", "kind")} | {"response": no})

    app = web.Application()
    app.router.add_post("/", refuse)
    runner, port = web.AppRunner(app), free_port()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield f"https://localhost:{port}/", base64.b64encode(made.authority.encode()).decode()
    finally:
        await runner.cleanup()


async def test_a_webhook_that_denies_is_reported_with_its_message(training: Training, kube: Kube, tmp_path: Path):
    async with refusing(tmp_path, "pods need an owner label") as (url, bundle):
        webhook = of_pods(kube, "owners.example.com", {"url": url, "caBundle": bundle})
        async with in_force(kube, validatingwebhookconfigurations=webhook):
            await until_refused(kube, "pods need an owner label")
            await training.apply()
            message = await blocked(training, kube, "AdmissionDenied")
            assert message.endswith(
                'admission webhook "owners.example.com" denied the request: pods need an owner label'
            )
            assert await training.pods() == []
            assert await training.condition("Invalid") == ("False", "")
    await training.until_pods(3)
    await until_free(training, kube)


async def test_an_admission_policy_that_denies_is_reported_with_its_message(training: Training, kube: Kube):
    policy, binding = a_policy(kube, "no-pods", PODS, "false", "no pods on Sundays")
    async with in_force(kube, validatingadmissionpolicies=policy, validatingadmissionpolicybindings=binding):
        await until_refused(kube, "no pods on Sundays")
        await training.apply()
        assert "no pods on Sundays" in await blocked(training, kube, "AdmissionDenied")
    await training.until_pods(3)
    await until_free(training, kube)


@pytest.mark.attack("E3", "a job with pods that the namespace does not admit", before="refused, too")
async def test_a_pod_that_its_namespace_does_not_admit_is_not_created_by_the_operator_either(
    training: Training, kube: Kube
):
    # given a namespace whose pods are restricted to the baseline standard, for every creator
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    await kube.call("PATCH", f"/api/v1/namespaces/{kube.namespace}", {"metadata": {"labels": labels}})

    # when a user requests pods that see all processes of their node
    def all_processes(job: Raw) -> None:
        job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostPID"] = True

    await training.apply(all_processes)

    # then none is created, and the job reports the reason
    message = await blocked(training, kube, "Forbidden")
    assert "violates PodSecurity" in message
    assert "hostPID=true" in message
    assert await training.pods() == []


async def test_in_a_namespace_that_is_being_deleted_nothing_is_created_and_the_job_gives_the_reason(
    training: Training, kube: Kube
):
    # given a job that runs, in a namespace that is being deleted
    a0, a1, spare = await training.start()
    await kube.call("DELETE", f"/api/v1/namespaces/{kube.namespace}")

    # when a pod is lost
    await training.remove(a1)
    await training.report(1, [(a0, 0), (spare, 1)])

    # then it is not replaced, and the condition reports the reason
    message = await blocked(training, kube, "NamespaceTerminating")
    assert "because it is being terminated" in message
    assert len(await training.pods()) == 2

    # and when the namespace controller deletes the job, the coordinator gets the end, and its line is closed
    await kube.call("DELETE", f"trainingjobs/{NAME}")

    async def let_go() -> bool:
        return not training.coordinator.observers

    await kube.until("the coordinator is let go", let_go)

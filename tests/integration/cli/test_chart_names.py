"""`doctor` finds the objects of the chart by their labels and names, which this compares with the rendered chart."""

from typing import Any

from tests.integration.test_chart import items
from understudy_cli.diagnosis import OURS
from understudy_cli.views.checks import services_of, shard_of


def of_kind(*kinds: str, settings: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return [document for document in items(*settings) if document["kind"] in kinds]


def test_doctor_finds_the_deployments_and_webhooks_of_the_chart_by_their_label() -> None:
    found = of_kind("Deployment", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    label, _, value = OURS.partition("=")
    assert len(found) >= 4
    assert {document["metadata"]["labels"].get(label) for document in found} == {value}
    pods = [document["spec"]["template"]["metadata"] for document in of_kind("Deployment")]
    assert {pod["labels"].get(label) for pod in pods} == {value}


def test_the_lease_of_the_operator_has_the_name_of_its_deployment() -> None:
    (operator,) = [x for x in of_kind("Deployment") if x["metadata"]["name"].endswith("-operator")]
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    (lease,) = [variable["value"] for variable in container["env"] if variable["name"] == "UNDERSTUDY_LEASE"]
    assert lease == f"{operator['metadata']['namespace']}/{operator['metadata']['name']}"


def test_doctor_finds_the_deployments_of_all_shards_by_their_names() -> None:
    deployments = of_kind("Deployment", settings=("operator.shards=2",))
    shards = [shard for document in deployments if (shard := shard_of(document["metadata"]["name"])) is not None]
    assert shards == ["0-of-2", "1-of-2"]


def test_the_webhooks_call_the_service_of_the_chart() -> None:
    services = {(x["metadata"]["namespace"], x["metadata"]["name"]) for x in of_kind("Service")}
    webhooks = of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    assert services_of(webhooks) == (("system", "understudy-webhook"),)
    assert set(services_of(webhooks)) <= services

"""The chart's objects for metrics, rendered by the real helm: monitors only if they are enabled."""

from typing import Any

import pytest
import yaml

from scripts.metrics_docs import ROOT, alerts
from tests.integration.test_chart import template
from understudy_operator.metrics.serving import port_of
from understudy_protocol import pod as names

ENV_PORT = "UNDERSTUDY_METRICS_PORT"

HEALTH_PORT = 8479

ALL = tuple(f"metrics.{part}.enabled=true" for part in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboard"))
Document = dict[str, Any]


def rendered(*settings: str) -> dict[tuple[str, str], Document]:
    """The objects by kind and name, without CRDs."""
    result = template("crds.enabled=false", *settings)
    assert result.returncode == 0, result.stderr
    documents = [document for document in yaml.load_all(result.stdout, yaml.CSafeLoader) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def container(documents: dict[tuple[str, str], Document], name: str) -> Document:
    (found,) = documents["Deployment", name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment(found: Document) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in found["env"]}


@pytest.mark.parametrize("name", ["understudy-operator", "understudy-webhook"])
def test_each_program_serves_metrics_at_its_services_port(name: str):
    documents = rendered("metrics.port=9999")
    found, service = container(documents, name), documents["Service", f"{name}-metrics"]
    assert port_of(environment(found)) == 9999
    assert {"name": "metrics", "containerPort": 9999} in found["ports"]
    assert service["spec"]["ports"] == [{"name": "metrics", "port": 9999, "targetPort": "metrics"}]
    labels = documents["Deployment", name]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_objects_of_the_prometheus_operator_are_installed_only_if_enabled():
    kinds = {kind for kind, _ in rendered()}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert ("ConfigMap", "understudy-dashboard") not in rendered()


def test_metrics_are_not_served_if_disabled():
    documents = rendered("metrics.enabled=false")
    assert ENV_PORT not in environment(container(documents, "understudy-operator"))
    assert ("Service", "understudy-operator-metrics") not in documents


def test_a_monitor_finds_the_services_and_a_prometheus_finds_the_monitor():
    documents = rendered(*ALL, "metrics.serviceMonitor.labels.release=prom", "metrics.serviceMonitor.interval=15s")
    monitor = documents["ServiceMonitor", "understudy"]
    assert monitor["metadata"]["labels"]["release"] == "prom"
    assert monitor["spec"]["endpoints"] == [{"port": "metrics", "interval": "15s"}]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = {name: x["metadata"]["labels"] for (kind, name), x in documents.items() if kind == "Service"}
    assert {name for name, labels in services.items() if wanted <= labels.items()} == {
        "understudy-operator-metrics",
        "understudy-webhook-metrics",
    }


def test_coordinators_are_scraped_at_their_probes_port_by_the_operators_label():
    (spec,) = [x["spec"] for (kind, _), x in rendered(*ALL).items() if kind == "PodMonitor"]
    assert spec["selector"] == {"matchLabels": {names.LABEL_COORDINATOR: "true"}}
    assert spec["podTargetLabels"] == [names.LABEL_JOB]
    (relabeling,) = spec["podMetricsEndpoints"][0]["relabelings"]
    assert relabeling["replacement"] == f"$1:{HEALTH_PORT}"
    # and with hostNetwork at the port of each pod
    assert spec["podMetricsEndpoints"][1] == {"port": "understudy-http", "interval": "30s"}


def test_alerts_are_those_of_the_files_and_the_webhooks_are_omitted_without_the_webhook():
    def is_reported(*settings: str) -> list[Document]:
        groups = rendered(*ALL, *settings)["PrometheusRule", "understudy"]["spec"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    assert is_reported() == [rule for _, rule in alerts()]
    assert is_reported("webhook.enabled=false") == [rule for path, rule in alerts() if path.stem == "operator"]


def test_the_limit_of_the_goodput_is_a_value():
    rule = rendered(*ALL, "metrics.prometheusRule.minGoodputPercent=85")["PrometheusRule", "understudy"]
    found = {each["alert"]: each["expr"] for each in rule["spec"]["groups"][0]["rules"]}
    assert found["UnderstudyJobLowGoodput"] == "100 * min(understudy_job_lowest_goodput_ratio) < 85"


def test_the_dashboard_is_installed_unchanged_with_grafanas_label():
    found = rendered(*ALL)["ConfigMap", "understudy-dashboard"]
    source = ROOT / "charts/understudy/files/dashboards/understudy.json"
    assert found["data"] == {"understudy.json": source.read_text(encoding="utf-8")}
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_only_text_and_json_are_log_formats():
    for name in ("understudy-operator", "understudy-webhook"):
        assert environment(container(rendered(), name))["UNDERSTUDY_LOG_FORMAT"] == "text"
        variables = environment(container(rendered("logFormat=json"), name))
        assert variables["UNDERSTUDY_LOG_FORMAT"] == "json"
    refused = template("logFormat=xml")
    assert refused.returncode != 0
    assert "at '/logFormat': value must be one of 'text', 'json'" in refused.stderr

"""Alerts and dashboard select existing series by existing labels, and each alert states what to do."""

import json
import re
from typing import Any

import pytest

from scripts.metrics_docs import ROOT, alerts
from tests.unit.metrics.expressions import Query, find_queries, known, wrong

RULES = [pytest.param(rule, id=rule["alert"]) for _, rule in alerts()]
DASHBOARD = json.loads((ROOT / "charts/understudy/files/dashboards/understudy.json").read_text(encoding="utf-8"))
PANELS = [pytest.param(panel, id=panel["title"]) for panel in DASHBOARD["panels"] if panel["type"] != "row"]
LABEL = re.compile(r"\$labels\.(\w+)|\{\{\s*(\w+)\s*\}\}")


def test_an_unknown_series_is_found():
    assert wrong("sum(rate(understudy_recoveries_total[5m]))") == []
    assert wrong("understudy_chief == 1") == ["no program has understudy_chief"]
    assert wrong("rate(understudy_recovery_seconds[5m])") == ["no program has understudy_recovery_seconds"]
    assert wrong('understudy_jobs{state="Running"}') == ["understudy_jobs has no label state"]
    assert wrong("sum by (fault, pool) (understudy_recoveries_total)") == ["nothing of it has label pool"]
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        wrong("sum(")


def test_every_selector_of_an_expression_is_found_however_deep():
    found = find_queries(
        'histogram_quantile(0.9, sum by (le) (rate(a{x="1"}[5m]))) > -(b or absent(c == 1)) and d offset 1h'
    )
    assert found == [Query("a", frozenset("x")), *(Query(name, frozenset()) for name in "bcd")]


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_selects_existing_series(rule: dict[str, Any]):
    assert wrong(rule["expr"]) == []


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_states_its_meaning_and_a_remedy(rule: dict[str, Any]):
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description", "action"}
    assert all(text.strip().endswith(".") for text in rule["annotations"].values())
    # and uses only labels that its result has
    labels = {next(filter(None, found)) for text in rule["annotations"].values() for found in LABEL.findall(text)}
    by = set(re.findall(r"by \((\w+)\)", rule["expr"]))
    assert labels <= by


def test_names_of_alerts_are_ours_and_differ():
    names = [rule["alert"] for _, rule in alerts()]
    assert len(names) == len(set(names))
    assert all(name.startswith("Understudy") for name in names)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_selects_existing_series(panel: dict[str, Any]):
    assert panel["description"]
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", "5m")
        assert wrong(expression) == []
        labels = {second for _, second in LABEL.findall(target["legendFormat"])}
        assert labels <= set(re.split(r"[(), ]+", expression))
        assert target["datasource"]["uid"] == "${datasource}"


def test_panels_do_not_cover_each_other():
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_alerts_and_panels_use_most_series():
    shown = {each.name for _, rule in alerts() for each in find_queries(rule["expr"])}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            shown |= {each.name for each in find_queries(target["expr"].replace("$__rate_interval", "5m"))}
    result = {re.sub("_(bucket|sum|count)$", "", name) for name in known() if name.startswith("understudy_")}
    unseen = result - {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    assert unseen == {  # of each job alone, or beside another metric
        "understudy_avoided_nodes",
        "understudy_coordinator_faults_total",
        "understudy_coordinator_is_leader",
        "understudy_coordinator_members",
        "understudy_coordinator_round",
        "understudy_coordinator_rounds_total",
        "understudy_coordinator_world_size",
        "understudy_lost_steps_total",
        "understudy_malformed_objects",
        "understudy_restores_total",
        "understudy_snapshot_copied_bytes_total",
        "understudy_snapshot_copied_step",
        "understudy_snapshot_copied_timestamp_seconds",
        "understudy_snapshot_copies_total",
        "understudy_snapshot_storage_step",
        "understudy_snapshot_storage_timestamp_seconds",
        "understudy_snapshot_storage_writes_total",
        "understudy_task_restarts_total",
        "understudy_watch_event_errors_total",
        "understudy_watch_restarts_total",
        "understudy_webhook_dropped_total",
    }

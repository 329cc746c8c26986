"""faults.sources in the chart's values: rows that extend the built-in ones, and rows that are rejected."""

import json
from typing import Any

import pytest

from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.plan.verdicts.fault_sources import FaultSource, NodeSignal, Polarity, SignalKind, findings
from understudy_operator.plan.verdicts.findings import find_verdict
from understudy_operator.plan.verdicts.table import InvalidRow, table_of
from understudy_operator.plan.verdicts.xids import FATAL
from understudy_protocol.enums import FaultClass

ROW = {"name": "rack", "signal": "Label", "keys": ["example.com/rack-state"], "values": ["hot"], "class": "Maintenance"}


def row(table: tuple[FaultSource, ...], name: str) -> FaultSource:
    return next(source for source in table if source.name == name)


def test_without_rows_the_table_is_the_built_in_one():
    assert table_of("") == BUILT_IN
    assert table_of("[]") == BUILT_IN


def test_an_added_row_has_precedence_over_all_built_in_ones_except_an_administrators_verdict():
    table = table_of(json.dumps([ROW]))
    assert table[:-1] == BUILT_IN
    assert table[-1] == FaultSource(
        "rack",
        SignalKind.LABEL,
        ("example.com/rack-state",),
        values=("hot",),
        fault_class=FaultClass.MAINTENANCE,
        precedence=50,
    )
    by_hand = {source.name for source in BUILT_IN if source.precedence > 50}
    assert by_hand == {"annotation", "annotation-healthy", "annotation-maintenance"}


def test_all_fields_of_a_row_are_read():
    whole = {
        "name": "monitor",
        "signal": "Condition",
        "keys": ["Gpu*"],
        "values": ["False"],
        "exceptValues": ["Unknown"],
        "polarity": "Faulty",
        "class": "Preemption",
        "precedence": 7,
        "xids": [79, 119],
        "expiresAfter": "1h30m",
        "until": "example.com/until",
        "grace": "20s",
    }
    assert row(table_of(json.dumps([whole])), "monitor") == FaultSource(
        "monitor",
        SignalKind.CONDITION,
        ("Gpu*",),
        values=("False",),
        excepted=("Unknown",),
        fault_class=FaultClass.PREEMPTION,
        precedence=7,
        xids=frozenset({79, 119}),
        expires_after_s=5400.0,
        until="example.com/until",
        grace_s=20.0,
    )


def test_a_condition_counts_when_it_is_true_unless_the_row_states_otherwise():
    bare = {"name": "c", "signal": "Condition", "keys": ["C"], "class": "Hardware"}
    assert row(table_of(json.dumps([bare])), "c").values == ("True",)


def test_a_row_may_match_all_fatal_xids():
    xids = {"name": "x", "signal": "Condition", "keys": ["X"], "class": "Hardware", "xids": "Fatal"}
    assert row(table_of(json.dumps([xids])), "x").xids == FATAL


def test_a_source_may_report_a_node_as_healthy():
    tested = {"name": "tested", "signal": "Label", "keys": ["tested"], "polarity": "Healthy"}
    table = table_of(json.dumps([tested]))
    assert row(table, "tested").polarity is Polarity.HEALTHY
    cordoned, label = NodeSignal(SignalKind.CORDON, "", "true"), NodeSignal(SignalKind.LABEL, "tested", "yes")
    assert find_verdict(findings([cordoned], {}, table), 0.0) is not None
    assert find_verdict(findings([cordoned, label], {}, table), 0.0) is None


def test_a_built_in_row_can_be_replaced_and_removed():
    rows: list[dict[str, Any]] = [
        {"name": "gpu-xid", "signal": "Condition", "keys": ["OurXids"], "class": "Hardware", "xids": "Fatal"},
        {"name": "cordon", "enabled": False},
    ]
    table = table_of(json.dumps(rows))
    assert len(table) == len(BUILT_IN) - 1
    assert row(table, "gpu-xid").keys == ("OurXids",)
    assert "cordon" not in {source.name for source in table}


@pytest.mark.parametrize(
    ("change", "field", "fix"),
    [
        ({"name": None}, "name", "lower-case letters"),
        ({"name": "Rack A"}, "name", "lower-case letters"),
        ({"signal": None}, "signal", "Condition, Label, Annotation, Taint or Cordon"),
        ({"signal": "Event"}, "signal", "Condition, Label, Annotation, Taint or Cordon"),
        ({"class": None}, "class", "Hardware, Maintenance or Preemption"),
        ({"class": "hardware"}, "class", "Hardware, Maintenance or Preemption"),
        ({"polarity": "Bad"}, "polarity", "Faulty or Healthy"),
        ({"polarity": "Healthy"}, "class", "remove it"),
        ({"keys": None}, "keys", "list of label keys"),
        ({"keys": "example.com/rack-state"}, "keys", "list of strings"),
        ({"keys": ["*"]}, "keys", "list of label keys"),
        ({"keys": ["example.com/rack state"]}, "keys", "* stands for any characters"),
        ({"keys": ["example.com/rack[0-9]"]}, "keys", "* stands for any characters"),
        ({"keys": [""]}, "keys", "list of label keys"),
        ({"values": [True]}, "values", "quote"),
        ({"signal": "Condition", "values": ["hot"]}, "values", "True, False or Unknown"),
        (
            {"signal": "Condition", "values": ["true"], "exceptValues": ["Off"]},
            "exceptValues",
            "True, False or Unknown",
        ),
        ({"exceptValues": ["Hot "]}, "exceptValues", "excludes all values"),
        ({"signal": "Condition", "values": None, "exceptValues": ["True"]}, "exceptValues", "excludes all values"),
        ({"exceptValues": "x"}, "exceptValues", "list of strings"),
        ({"signal": "Cordon"}, "keys", "remove keys"),
        ({"precedence": "high"}, "precedence", "0 to 1000"),
        ({"precedence": 1001}, "precedence", "0 to 1000"),
        ({"precedence": True}, "precedence", "0 to 1000"),
        ({"xids": "fatal"}, "xids", "Fatal, or to a list"),
        ({"xids": ["79"]}, "xids", "Fatal, or to a list"),
        ({"xids": [True]}, "xids", "Fatal, or to a list"),
        ({"signal": "Cordon", "keys": None, "values": None, "xids": [79]}, "xids", "remove it"),
        ({"expiresAfter": "1h"}, "expiresAfter", "until"),
        ({"signal": "Taint", "expiresAfter": "1 hour"}, "expiresAfter", "such as 90s"),
        ({"grace": 30}, "grace", "such as 90s"),
        ({"until": 5}, "until", "annotation"),
        ({"enabled": "no"}, "enabled", "true or false"),
        ({"enabled": False}, "name", "nvsentinel-xid"),
        ({"severity": "high"}, "severity", "remove it"),
    ],
)
def test_a_wrong_row_is_refused_with_its_number_field_and_fix(change: dict[str, Any], field: str, fix: str):
    wrong = {name: value for name, value in (ROW | change).items() if value is not None}
    rows = [{"name": "first", "signal": "Cordon", "class": "Maintenance"}, wrong]
    with pytest.raises(InvalidRow) as refused:
        table_of(json.dumps(rows))
    assert str(refused.value).startswith(f"faults.sources[1].{field}: ")
    assert fix in str(refused.value)


def test_two_rows_cannot_have_one_name():
    with pytest.raises(
        InvalidRow, match=r"faults.sources\[1\].name: 'rack' is already the name of source 0; rename one of them"
    ):
        table_of(json.dumps([ROW, ROW]))


@pytest.mark.parametrize("text", ["{", '{"name": "x"}', "5"])
def test_a_value_that_is_no_list_of_rows_is_refused(text: str):
    with pytest.raises(ValueError, match="set it to a list of sources"):
        table_of(text)


def test_a_row_that_is_no_object_is_refused():
    with pytest.raises(
        InvalidRow, match=r"faults.sources\[0\]: is a str; set it to a source with name, signal and keys"
    ):
        table_of('["cordon"]')

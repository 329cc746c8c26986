"""Which of several sources decides the verdict."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from understudy_operator.plan.verdicts.fault_sources import FaultSource, NodeSignal, Polarity, SignalKind, findings
from understudy_operator.plan.verdicts.findings import Finding, find_verdict
from understudy_protocol.enums import FaultClass

NOW = 1_790_000_000.0
BAD = FaultSource("bad", SignalKind.LABEL, ("bad",))
MAINTENANCE = replace(BAD, name="maintenance", keys=("goes",), fault_class=FaultClass.MAINTENANCE)
PREEMPTION = replace(BAD, name="preemption", keys=("taken",), fault_class=FaultClass.PREEMPTION)
VOUCHES = replace(BAD, name="vouches", keys=("good",), polarity=Polarity.HEALTHY)


def verdict(table: Sequence[FaultSource], *labels: str) -> str:
    signals = [NodeSignal(SignalKind.LABEL, label, "true") for label in labels]
    found = find_verdict(findings(signals, {}, table), NOW)
    return "" if found is None else found.source


def test_there_is_no_finding_about_a_node_that_no_source_matches():
    assert verdict((BAD, VOUCHES), "other") == ""


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("bad", "goes", "taken"), "bad"),
        (("goes", "taken"), "preemption"),
        (("goes",), "maintenance"),
        (("goes", "good"), "maintenance"),
        (("good",), ""),
    ],
)
def test_at_equal_precedence_the_gravest_class_counts(labels: tuple[str, ...], expected: str):
    assert verdict((VOUCHES, MAINTENANCE, PREEMPTION, BAD), *labels) == expected


def test_only_the_highest_precedence_counts():
    assert verdict((BAD, replace(MAINTENANCE, precedence=1)), "bad", "goes") == "maintenance"
    assert verdict((BAD, replace(VOUCHES, precedence=1)), "bad", "good") == ""
    assert verdict((BAD, replace(VOUCHES, precedence=1)), "bad") == "bad"


def test_among_two_equal_sources_the_first_of_the_table_is_reported():
    assert verdict((replace(BAD, name="b"), replace(BAD, name="a")), "bad") == "b"


def test_an_expired_finding_gives_way_to_one_that_has_not_expired():
    first = Finding("first", FaultClass.HARDWARE, "", until=NOW + 10)
    second = Finding("second", FaultClass.MAINTENANCE, "")
    assert find_verdict((first, second), NOW + 9.9) is first
    assert find_verdict((first, second), NOW + 10) is second
    assert find_verdict((replace(second, until=NOW),), NOW) is None


# Expiry --------------------------------------------------------------------------------------------------------------


def until(source: FaultSource, signal: NodeSignal, **annotations: str) -> float | None:
    (found,) = findings([signal], annotations, (source,))
    return found.until


def test_a_signal_expires_after_its_sources_lifetime():
    source = FaultSource("c", SignalKind.CONDITION, ("C",), values=("True",), expires_after_s=600.0)
    assert until(source, NodeSignal(SignalKind.CONDITION, "C", "True", since=NOW)) == NOW + 600


def test_a_signal_without_a_start_does_not_expire_by_its_age():
    source = FaultSource("c", SignalKind.CONDITION, ("C",), values=("True",), expires_after_s=600.0)
    assert until(source, NodeSignal(SignalKind.CONDITION, "C", "True")) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1790000060", NOW + 60), ("2026-09-21T14:14:20Z", NOW + 60), (" 1790000060 ", NOW + 60), ("soon", None)],
)
def test_an_annotation_reports_when_a_signal_expires(text: str, expected: float | None):
    source = replace(BAD, until="bad-until")
    assert until(source, NodeSignal(SignalKind.LABEL, "bad", "true"), **{"bad-until": text}) == expected


def test_the_earlier_of_two_expiries_counts():
    source = FaultSource("t", SignalKind.TAINT, ("t",), expires_after_s=600.0, until="t-until")
    signal = NodeSignal(SignalKind.TAINT, "t", "", since=NOW)
    assert until(source, signal, **{"t-until": str(int(NOW) + 60)}) == NOW + 60
    assert until(source, signal, **{"t-until": str(int(NOW) + 6000)}) == NOW + 600

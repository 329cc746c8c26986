"""Patterns of failure rules have RE2's meaning."""

import pytest

from tests.unit.operator.given import a_job
from understudy_operator.plan.jobset.patterns import invalid_pattern, matches_pattern
from understudy_operator.plan.spec import Action, FailurePolicy, FailureRule


@pytest.mark.parametrize(
    ("pattern", "message", "matches"),
    [
        ("exit code 137", "container x failed with exit code 137 on node n", True),  # anywhere in the message
        ("^exit", "an exit", False),
        ("(?i)OOM", "oomkilled", True),
        (r"\bmaint(enance)?\b", "node maintenance", True),
        ("a.c", "a\nc", False),
        (r"\pL+", "Grün", True),  # what Python's re does not know
        ("", "", True),
    ],
)
def test_what_matches(pattern: str, message: str, matches: bool):
    assert matches_pattern(pattern, message) is matches


@pytest.mark.parametrize("pattern", ["(", r"(?=x)", r"(a)\1"])  # the latter two are Python's, and not RE2's
def test_a_pattern_that_is_none_is_complained_about_and_matches_nothing(
    pattern: str, capfd: pytest.CaptureFixture[str]
):
    rules = (FailureRule("a", Action.FAIL, patterns=("fine",)), FailureRule("b", Action.FAIL, patterns=(pattern,)))
    message = invalid_pattern(a_job(spec={"failure": FailurePolicy(rules=rules)}).spec)
    assert message.startswith("failurePolicy.rules[1].onJobFailureMessagePatterns: ")
    assert message.endswith(": correct the pattern")
    assert not matches_pattern(pattern, "x")
    assert capfd.readouterr().err == ""


def test_without_a_policy_or_with_patterns_that_are_there_is_nothing_to_complain_about():
    assert invalid_pattern(a_job().spec) == ""
    rules = (FailureRule("a", Action.FAIL, patterns=("fine.*",)),)
    assert invalid_pattern(a_job(spec={"failure": FailurePolicy(rules=rules)}).spec) == ""

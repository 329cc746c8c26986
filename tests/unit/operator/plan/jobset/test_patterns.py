"""Patterns of failure rules have RE2's semantics."""

import pytest

from tests.unit.operator.given import a_job
from understudy_operator.plan.facts.spec import Action, FailurePolicy, FailureRule
from understudy_operator.plan.jobset.patterns import invalid_pattern, matches_pattern


@pytest.mark.parametrize(
    ("pattern", "message", "matches"),
    [
        ("exit code 137", "container x failed with exit code 137 on node n", True),  # anywhere in the message
        ("^exit", "an exit", False),
        ("(?i)OOM", "oomkilled", True),
        (r"\bmaint(enance)?\b", "node maintenance", True),
        ("a.c", "a\nc", False),
        (r"\pL+", "Grün", True),  # unknown to Python's re
        ("", "", True),
    ],
)
def test_patterns_match_as_in_re2(pattern: str, message: str, matches: bool):
    assert matches_pattern(pattern, message) is matches


@pytest.mark.parametrize("pattern", ["(", r"(?=x)", r"(a)\1"])  # Python has the latter two, RE2 does not
def test_an_invalid_pattern_is_reported_and_matches_nothing(pattern: str, capfd: pytest.CaptureFixture[str]):
    rules = (FailureRule("a", Action.FAIL, patterns=("fine",)), FailureRule("b", Action.FAIL, patterns=(pattern,)))
    message = invalid_pattern(a_job(spec={"failure": FailurePolicy(rules=rules)}).spec)
    assert message.startswith("failurePolicy.rules[1].onJobFailureMessagePatterns: ")
    assert message.endswith(": correct the pattern")
    assert not matches_pattern(pattern, "x")
    assert capfd.readouterr().err == ""


def test_a_missing_policy_and_valid_patterns_are_not_reported():
    assert invalid_pattern(a_job().spec) == ""
    rules = (FailureRule("a", Action.FAIL, patterns=("fine.*",)),)
    assert invalid_pattern(a_job(spec={"failure": FailurePolicy(rules=rules)}).spec) == ""

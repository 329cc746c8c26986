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


@pytest.mark.attack(
    "A1",
    "creates TrainingJobs with patterns of two megabytes, or sends them to the webhook",
    before="operator and webhook kept 256 of them: more than their memory",
)
def test_a_pattern_of_more_than_4096_characters_is_invalid():
    rules = (FailureRule("a", Action.FAIL, patterns=("x" * 4096, "x" * 4097)),)
    message = invalid_pattern(a_job(spec={"failure": FailurePolicy(rules=rules)}).spec)
    assert "it has 4097 characters; at most 4096 are allowed" in message
    assert not matches_pattern("x" * 4097, "x" * 5000)


@pytest.mark.attack(
    "A1",
    "creates TrainingJobs with short patterns that take megabytes once they are compiled",
    before="operator and webhook kept 256 of them: more than their memory",
)
def test_a_pattern_that_takes_much_memory_is_invalid():
    large = ".{1000}" * 10
    rules = (FailureRule("a", Action.FAIL, patterns=(large,)),)
    message = invalid_pattern(a_job(spec={"failure": FailurePolicy(rules=rules)}).spec)
    assert "is not a regular expression of RE2 (pattern too large - compile failed)" in message
    assert not matches_pattern(large, "x" * 20_000)


@pytest.mark.attack(
    "A1",
    "creates a TrainingJob with 2,048 patterns",
    before="the operator compiled them in each reconcile, for 20 s if they were large",
)
def test_a_job_has_at_most_128_patterns():
    rules = tuple(FailureRule(f"r{x}", Action.FAIL, patterns=tuple(f"{x} {y}" for y in range(43))) for x in range(3))
    message = invalid_pattern(a_job(spec={"failure": FailurePolicy(rules=rules)}).spec)
    assert message == "failurePolicy.rules: they have 129 patterns; at most 128 are allowed: remove some"
    assert invalid_pattern(a_job(spec={"failure": FailurePolicy(rules=rules[:2])}).spec) == ""


def test_a_missing_policy_and_valid_patterns_are_not_reported():
    assert invalid_pattern(a_job().spec) == ""
    rules = (FailureRule("a", Action.FAIL, patterns=("fine.*",)),)
    assert invalid_pattern(a_job(spec={"failure": FailurePolicy(rules=rules)}).spec) == ""

"""Regular expressions of failure rules, as RE2 understands them: a match anywhere in a Job's message counts.

Users choose the patterns, and every pod may send some to the webhook. So the number of a job's patterns is limited,
and the length of each, and its memory once it is compiled. As many patterns as a job may have stay compiled.
"""

import functools
from typing import Any

from understudy_operator.plan.facts.spec import JobSpec

MOST, LONGEST = 128, 4096
#: For its program, and for the states of its searches. RE2's own limit is 8 MiB.
PATTERN_BYTES = 1 << 20


def matches_pattern(pattern: str, message: str) -> bool:
    """False if the pattern is invalid."""
    compiled = _compiled_if_short(pattern)
    return not isinstance(compiled, str) and compiled.search(message) is not None


def invalid_pattern(spec: JobSpec) -> str:
    """A message about the first pattern that is not a regular expression; "" if all are."""
    rules = () if spec.failure is None else spec.failure.rules
    if (count := sum(len(rule.patterns) for rule in rules)) > MOST:
        return f"failurePolicy.rules: they have {count} patterns; at most {MOST} are allowed: remove some"
    for number, rule in enumerate(rules):
        for pattern in rule.patterns:
            compiled = _compiled_if_short(pattern)
            if isinstance(compiled, str):
                return (
                    f"failurePolicy.rules[{number}].onJobFailureMessagePatterns: {pattern[:LONGEST]!r} is not a "
                    f"regular expression of RE2 ({compiled}): correct the pattern"
                )
    return ""


def _compiled_if_short(pattern: str) -> Any:
    """As _compiled, which keeps the pattern."""
    if len(pattern) > LONGEST:
        return f"it has {len(pattern)} characters; at most {LONGEST} are allowed"
    return _compiled(pattern)


@functools.lru_cache(maxsize=MOST)
def _compiled(pattern: str) -> Any:
    """The compiled expression, or the reason why the pattern is invalid."""
    import re2  # here, because local mode, which has no failure policy, has no RE2 either

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        text = error.args[0] if error.args else "invalid"
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)

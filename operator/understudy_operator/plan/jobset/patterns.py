"""Regular expressions of failure rules, as RE2 understands them: a match anywhere in a Job's message counts."""

import functools
from typing import Any

from understudy_operator.plan.facts.spec import JobSpec


def matches_pattern(pattern: str, message: str) -> bool:
    """False if the pattern is invalid."""
    compiled = _compiled(pattern)
    return not isinstance(compiled, str) and compiled.search(message) is not None


def invalid_pattern(spec: JobSpec) -> str:
    """A message about the first pattern that is not a regular expression; "" if all are."""
    rules = () if spec.failure is None else spec.failure.rules
    for number, rule in enumerate(rules):
        for pattern in rule.patterns:
            compiled = _compiled(pattern)
            if isinstance(compiled, str):
                return (
                    f"failurePolicy.rules[{number}].onJobFailureMessagePatterns: {pattern!r} is not a regular "
                    f"expression of RE2 ({compiled}): correct the pattern"
                )
    return ""


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    """The compiled expression, or the reason why the pattern is invalid."""
    import re2  # here, because local mode, which has no failure policy, has no RE2 either

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        text = error.args[0] if error.args else "invalid"
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)

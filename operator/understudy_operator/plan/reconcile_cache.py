"""What several decisions of a pass ask for is made once: its facts do not change, and may be of thousands of pods."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple

from understudy_operator.plan.observed import Observed

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def cached_per_reconcile(function: Callable[[Observed, *Ts], T]) -> Callable[[Observed, *Ts], T]:
    """A function that keeps what it has made of a pass's facts, with them. For what nobody changes afterwards."""

    @wraps(function)
    def cached(observed: Observed, *at: *Ts) -> T:
        key = (function, *at)
        if key not in observed.computed:
            observed.computed[key] = function(observed, *at)
        result: T = observed.computed[key]
        return result

    return cached

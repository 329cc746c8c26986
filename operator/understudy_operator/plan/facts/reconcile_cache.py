"""Results that several decisions of a reconcile need are computed once: they may depend on thousands of pods."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple

from understudy_operator.plan.facts.observed import Observed

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def cached_per_reconcile(function: Callable[[Observed, *Ts], T]) -> Callable[[Observed, *Ts], T]:
    """A function that stores its results with the facts of the reconcile. Its results must not be changed."""

    @wraps(function)
    def cached(observed: Observed, *at: *Ts) -> T:
        key = (function, *at)
        if key not in observed.computed:
            observed.computed[key] = function(observed, *at)
        result: T = observed.computed[key]
        return result

    return cached

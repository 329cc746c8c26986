"""Shrinks a failing case: the fewest and shortest faults, and the smallest job, that still violate a rule.

Every attempt is the same seed with one fault less (then shorter ones, then fewer pods). The target of a fault is drawn
when it strikes, so an attempt may run differently; any violation counts, because each is a bug.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.run import Case, run_case
from tests.simulation.world import Violation

ATTEMPTS = 200


def shrink(case: Case) -> tuple[Case, Violation]:
    """The smallest case that was found, and its violation. Raises ValueError if the case violates no rule."""
    smallest, violation = case, _violation(case)
    if violation is None:
        raise ValueError(f"seed {case.seed} breaks nothing")
    attempts, progress = 0, True
    while progress and attempts < ATTEMPTS:
        progress = False
        for smaller in _smaller(smallest):
            attempts += 1
            found = _violation(smaller)
            if found is not None:
                smallest, violation, progress = smaller, found, True
                break
            if attempts >= ATTEMPTS:
                break
    return smallest, violation


def _smaller(case: Case) -> Iterator[Case]:
    for at in range(len(case.faults)):
        yield replace(case, faults=case.faults[:at] + case.faults[at + 1 :])
    setup = case.setup
    if setup.spares:
        yield replace(case, setup=replace(setup, spares=setup.spares - 1))
    if setup.actives > 1:
        yield replace(case, setup=replace(setup, actives=setup.actives - 1))
    if setup.nproc > 1:
        yield replace(case, setup=replace(setup, nproc=1))
    for at, fault in enumerate(case.faults):
        if fault.lasts_s > 1.0:
            shorter = replace(fault, lasts_s=round(fault.lasts_s / 2, 1))
            yield replace(case, faults=(*case.faults[:at], shorter, *case.faults[at + 1 :]))


def _violation(case: Case) -> Violation | None:
    try:
        run_case(case)
    except Violation as violation:
        return violation
    return None

"""Tells what belongs to the attempt that counts from what is left of former ones, before anything is decided."""

from dataclasses import replace

from understudy_operator.plan.jobset.validation import complaint
from understudy_operator.plan.observed import Coordination, Observed


def of_this_attempt(observed: Observed) -> Observed:
    """Pods of former attempts are set apart, and what a former coordinator said is forgotten."""
    epoch, told = observed.job.former_epoch, observed.coordination
    if told.snapshot is not None and epoch and told.snapshot.token.epoch <= epoch:
        told = Coordination(since=told.since)
    # Injected pods do not know their attempt. What ends one is a suspension, whose pods their controller removes.
    all_ours = observed.job.injected is not None
    return replace(
        observed,
        pods=tuple(pod for pod in observed.pods if all_ours or pod.attempt == epoch),
        former=tuple(pod for pod in observed.pods if not all_ours and pod.attempt != epoch),
        coordination=told,
        complaint="" if all_ours else complaint(observed.job.name, observed.job.spec),
    )

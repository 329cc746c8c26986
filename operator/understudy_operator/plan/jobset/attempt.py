"""Separates the pods of the current attempt from those of previous ones, before any decision."""

from dataclasses import replace

from understudy_operator.plan.facts.observed import Coordination, Observed
from understudy_operator.plan.jobset.validation import describe_spec_error


def select_attempt(observed: Observed) -> Observed:
    """Move pods of previous attempts to previous_pods, and drop the report of a previous attempt's coordinator."""
    epoch, coordination = observed.job.previous_epoch, observed.coordination
    if coordination.snapshot is not None and epoch and coordination.snapshot.token.epoch <= epoch:
        coordination = Coordination(since=coordination.since)
    # Injected pods do not know their attempt. Only a suspension ends one, and then their controller deletes the pods.
    is_injected = observed.job.injected is not None
    return replace(
        observed,
        pods=tuple(pod for pod in observed.pods if is_injected or pod.attempt == epoch),
        previous_pods=tuple(pod for pod in observed.pods if not is_injected and pod.attempt != epoch),
        coordination=coordination,
        spec_error="" if is_injected else describe_spec_error(observed.job.name, observed.job.spec),
    )

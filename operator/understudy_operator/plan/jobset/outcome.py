"""The outcome for the job when Jobs have ended: the success policy and the failure policy.

    event                                                  outcome
    -----------------------------------------------------  ------------------------------------------------------------
    a Job has failed, and there is no failure policy       Failed
    a Job has failed, and a rule applies                   its action: Failed, or a restart of the job or of this Job
    a Job has failed, and no rule applies                  a restart of the whole job
    the restart counts, and maxRestarts are spent          Failed
    a weight update has failed (rollouts.py)               a restart of the rollouts; Failed if maxRestarts are spent
    Jobs have succeeded as the success policy requires     Completed
    a Job has succeeded, and the policy requires none      Completed

Rules: a failure has precedence over a success. A rule applies by the failure's reason, its message and the
replicatedJob. The first rule that applies counts; among the Jobs that it applies to, the first that failed. The world
fails and restarts as a whole: if one of its Jobs restarts alone, all of them do, at the cost of one restart.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.spec import (
    Action,
    FailurePolicy,
    FailureRule,
    JobSpec,
    SuccessOperator,
    SuccessPolicy,
)
from understudy_operator.plan.jobset.patterns import matches_pattern
from understudy_operator.plan.jobset.rollouts import REASON, RolloutRestart, plan_rollout_restart
from understudy_operator.plan.jobset.views import EXHAUSTED, JobPhase, JobView, views

COMPLETED_REASON = "AllJobsCompleted"
COMPLETED = "all Jobs that the success policy names have succeeded"
COMPLETED_WITHOUT_TARGETS = "a Job has succeeded, and the replicatedJobs that the success policy names have no Jobs"


@dataclass(frozen=True)
class Completed:
    message: str = COMPLETED
    reason: str = COMPLETED_REASON


@dataclass(frozen=True)
class Failed:
    reason: str
    message: str


@dataclass(frozen=True)
class Restart:
    """A restart of the whole job, or of one Job."""

    reason: str
    message: str
    counts: bool  # towards maxRestarts
    single_job: JobView | None = None
    rollouts: RolloutRestart | None = None  # set if the rollouts restart alone


Outcome = Completed | Failed | Restart


def outcome(observed: Observed) -> Outcome | None:
    """The outcome in this reconcile; None if there is none."""
    if observed.job.terminal:
        return None
    jobs = views(observed)
    failed = sorted(
        (view for view in jobs if view.phase is JobPhase.FAILED), key=lambda view: (view.ended_at, view.name)
    )
    if failed:
        return _after_failure(observed, failed)
    rollout_restart = plan_rollout_restart(observed)
    if rollout_restart is not None:
        return _after_failed_update(observed, rollout_restart)
    if _succeeded(observed.job.spec, jobs):
        close = observed.close  # its message, if there is one
        return Completed(close.message if close is not None and close.message else _completion_message(observed, jobs))
    return None


def _completion_message(observed: Observed, jobs: Iterable[JobView]) -> str:
    policy = observed.job.spec.success
    if policy.operator is SuccessOperator.ALL:
        return COMPLETED if any(_is_target(policy, view.group) for view in jobs) else COMPLETED_WITHOUT_TARGETS
    first = next(view for view in jobs if view.phase is JobPhase.SUCCEEDED and _is_target(policy, view.group))
    return f"Job {first.name} has succeeded, and the success policy needs only one Job"


def _succeeded(spec: JobSpec, jobs: Iterable[JobView]) -> bool:
    policy, succeeded = spec.success, [view for view in jobs if view.phase is JobPhase.SUCCEEDED]
    count = sum(_is_target(policy, view.group) for view in succeeded)
    if policy.operator is SuccessOperator.ANY:
        return count >= 1
    return bool(succeeded) and sum(x.replicas for x in spec.replicated_jobs if _is_target(policy, x.name)) <= count


def _is_target(policy: SuccessPolicy | FailureRule, group: str) -> bool:
    return not policy.targets or group in policy.targets


def _after_failure(observed: Observed, failed: list[JobView]) -> Outcome:
    policy, job = observed.job.spec.failure, observed.job
    if policy is None:
        return Failed("FailedJobs", _describe_failure(failed[0]))
    rule, view = _first_rule(policy, failed)
    action = Action.RESTART if rule is None else rule.action
    rule_text = "no rule applies" if rule is None else f"rule {rule.name}"
    reason = f"{action.value}FailurePolicyAction"
    if action is Action.FAIL:
        return Failed(reason, f"{rule_text}: {_describe_failure(view)}")
    counts = action in (Action.RESTART, Action.RESTART_JOB)
    spent = job.restarts_counted
    if counts and spent >= policy.max_restarts:
        allowed = f"{spent} of {policy.max_restarts} restarts are spent"
        return Failed("ReachedMaxRestarts", f"{allowed}: {_describe_failure(view)}")
    single_job = view if action in (Action.RESTART_JOB, Action.RESTART_JOB_UNCOUNTED) else None
    cost = f"restart {spent + 1} of {policy.max_restarts}" if counts else "a restart that does not count"
    return Restart(reason, f"{rule_text}, {cost}: {_describe_failure(view)}", counts, single_job)


def _after_failed_update(observed: Observed, rollout_restart: RolloutRestart) -> Outcome:
    """Costs one restart, like every restart under failurePolicy."""
    policy, spent = observed.job.spec.failure, observed.job.restarts_counted
    allowed = 0 if policy is None else policy.max_restarts
    if rollout_restart.counts and spent >= allowed:
        return Failed("ReachedMaxRestarts", f"{spent} of {allowed} restarts are spent: {rollout_restart.reason}")
    cost = f"restart {spent + 1} of {allowed}" if rollout_restart.counts else "a restart that does not count"
    return Restart(
        REASON,
        f"{rollout_restart.action}, {cost}: {rollout_restart.reason}",
        rollout_restart.counts,
        rollout_restart.jobs[0],
        rollout_restart,
    )


def _first_rule(policy: FailurePolicy, failed: list[JobView]) -> tuple[FailureRule | None, JobView]:
    for rule in policy.rules:
        for view in failed:
            if _applies(rule, view):
                return rule, view
    return None, failed[0]


def _applies(rule: FailureRule, view: JobView) -> bool:
    if rule.reasons and view.reason not in rule.reasons:
        return False
    if rule.patterns and not any(matches_pattern(pattern, view.message) for pattern in rule.patterns):
        return False
    return _is_target(rule, view.group)


def _describe_failure(view: JobView) -> str:
    if view.of_world and view.reason == EXHAUSTED and view.message:
        return view.message
    detail = ": ".join(part for part in (view.reason, view.message) if part)
    return f"Job {view.name} failed: {detail}" if detail else f"Job {view.name} failed"

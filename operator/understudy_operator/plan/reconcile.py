"""One pass over one TrainingJob: everything observed in, everything to do out."""

from collections.abc import Sequence
from dataclasses import replace

from understudy_operator.plan.attempt import of_this_attempt
from understudy_operator.plan.checks import plan_checks
from understudy_operator.plan.coordination import Office, plan_label, plan_link, plan_office
from understudy_operator.plan.events import plan_events
from understudy_operator.plan.injection.care import as_found, plan_target
from understudy_operator.plan.intents import (
    AdoptSpare,
    DeletePod,
    Follow,
    PatchPod,
    Plan,
    PodIntent,
    ReleasePod,
    Unfollow,
)
from understudy_operator.plan.jobset import keys
from understudy_operator.plan.jobset.children import plan_children
from understudy_operator.plan.jobset.deadline import overdue
from understudy_operator.plan.jobset.job_pods import asks
from understudy_operator.plan.jobset.outcome import Restart, outcome
from understudy_operator.plan.jobset.ttl import left_s
from understudy_operator.plan.jobset.unseen import unrecorded_suspension
from understudy_operator.plan.members import plan_members
from understudy_operator.plan.moment import Moment
from understudy_operator.plan.objects import plan_objects
from understudy_operator.plan.observed import Observed
from understudy_operator.plan.pool.adopting import plan_adoptions, unadopted
from understudy_operator.plan.pool.claiming import plan_claims
from understudy_operator.plan.retries import TRY_AGAIN_S, without_paused
from understudy_operator.plan.status import PROGRESS_EVERY_S, plan_status, rests, worth_writing
from understudy_protocol.observer import End
from understudy_protocol.words import CloseReason

#: While a coordinator is searched for, a child Job's pods are waited for, or a spare is told whose it is: nobody wakes
#: a pass for what is heard.
LOOK_AGAIN_S = 2.0
#: While a job is alive it is looked at so often, whatever may be.
LOOK_ANYWAY_S = 30.0
#: Where a decision ripens it is made at most so much later: thousands of pods ripen one by one.
AT_ONCE_S = 0.2
SUSPENDED = Unfollow(End(CloseReason.SUSPENDED, "the job is suspended"))


def reconcile(observed: Observed, sidecar_image: str, at: float) -> Plan:
    """The plan of this pass. Pure: the same facts give the same plan."""
    now = Moment(at)
    observed = as_found(of_this_attempt(observed))
    observed = replace(observed, overdue=overdue(observed, now))
    if observed.job.deleting:
        return Plan(link=plan_link(observed, plan_office(observed, now), now))
    if observed.job.spec.managed_by not in keys.OURSELVES:
        return Plan()  # somebody else's: hands off
    ended = observed.job.terminal or (observed.close is not None and not observed.job.spec.children)
    office = plan_office(observed, now)
    status = plan_status(observed, office, now)
    checks = () if ended else plan_checks(observed, sidecar_image)
    turns = _turns(observed, now)
    claims = plan_claims(observed, sidecar_image, now)
    # Where an attempt ends nothing else is done: the next pass finds it in status.
    still = bool(checks) or turns is not None or isinstance(outcome(observed), Restart)
    adoptions = () if still else plan_adoptions(observed, now)
    plan = Plan(
        adopt=tuple(step for step in adoptions if isinstance(step, AdoptSpare)),
        checks=checks,
        objects=() if ended else plan_objects(observed, now),
        status=status if worth_writing(observed.job.status, status, now) else None,
        jobs=() if still else (*plan_children(observed, sidecar_image), *plan_target(observed)),
        claims=() if still else claims.claims,
        pods=()
        if still
        else _unhindered(
            (
                *claims.pods,
                *(step for step in adoptions if not isinstance(step, AdoptSpare)),
                *plan_members(observed, sidecar_image, now),
                *plan_label(observed, office),
            )
        ),
        link=turns or _link(observed, office, now),
        events=plan_events(observed, office, status),
        remove=_expired(observed, now),
    )
    plan = without_paused(plan, observed.paused, now)
    return replace(plan, again_in_s=_again_in_s(observed, now))


def _unhindered(intents: Sequence[PodIntent]) -> tuple[PodIntent, ...]:
    """Do not patch a pod that this plan deletes: the patch would change its version and the deletion would fail."""
    as_seen = {intent.name for intent in intents if isinstance(intent, (DeletePod, ReleasePod))}
    return tuple(intent for intent in intents if not isinstance(intent, PatchPod) or intent.name not in as_seen)


def _turns(observed: Observed, now: float) -> Unfollow | None:
    """The last words to the members, where this pass ends the attempt of the world."""
    what = outcome(observed)
    whole = isinstance(what, Restart) and (what.alone is None or what.alone.of_world)
    if isinstance(what, Restart) and whole and observed.job.spec.world is not None:
        return Unfollow(End(CloseReason.DELETED, f"the job restarts: {what.message}"))
    if rests(observed, now):
        why = unrecorded_suspension(observed)
        return Unfollow(End(CloseReason.SUSPENDED, why)) if why else SUSPENDED
    return None


def _link(observed: Observed, office: Office, now: float) -> Follow | Unfollow | None:
    return None if observed.job.spec.world is None else plan_link(observed, office, now)


def _expired(observed: Observed, now: float) -> str:
    left = left_s(observed.job, now)
    return f"it ended {observed.job.spec.ttl_s:g} s ago" if left is not None and left <= 0 else ""


def _again_in_s(observed: Observed, now: Moment) -> float | None:
    job = observed.job
    pods_ended = all(pod.over for pod in (*observed.pods, *observed.former))
    jobs_ended = all(child.ended for child in observed.children)
    world_closed = job.spec.world is not None and observed.close is not None and not job.spec.children
    if (job.terminal or world_closed) and pods_ended and jobs_ended:
        left = left_s(job, now)
        return None if left is None else max(left, LOOK_AGAIN_S)
    at_most_s = min(_at_most_s(observed, now), TRY_AGAIN_S if observed.refusals else LOOK_ANYWAY_S)
    return max(AT_ONCE_S, min(at_most_s, now.left_s))


def _at_most_s(observed: Observed, now: Moment) -> float:
    """Until somebody looks what was heard that wakes nobody."""
    searches = not observed.coordination.in_office or observed.cut_off
    asked = asks(observed.children, observed.nodes, now).selectors
    if asked or unadopted(observed) or (searches and observed.job.spec.world is not None):
        return LOOK_AGAIN_S
    steps = observed.snapshot is not None and observed.snapshot.progress is not None
    return PROGRESS_EVERY_S if steps else LOOK_ANYWAY_S

"""One pass over one TrainingJob: everything observed in, everything to do out."""

from understudy_operator.plan.coordination import plan_label, plan_link, plan_office
from understudy_operator.plan.events import plan_events
from understudy_operator.plan.intents import Plan
from understudy_operator.plan.members import plan_members
from understudy_operator.plan.objects import plan_objects
from understudy_operator.plan.observed import Observed
from understudy_operator.plan.status import plan_status, worth_writing

#: Some decisions ripen with time alone (a grace period, a limit): while a job is alive it is looked at so often.
LOOK_AGAIN_S = 2.0
#: What the API server has refused is tried again so often: a quota may have room again, a webhook be back.
TRY_AGAIN_S = 10.0


def reconcile(observed: Observed, sidecar_image: str, now: float) -> Plan:
    """The plan of this pass. Pure: the same facts give the same plan."""
    if observed.job.deleting:
        return Plan(link=plan_link(observed, plan_office(observed, now)))
    closed = observed.close is not None
    office = plan_office(observed, now)
    status = plan_status(observed, office, now)
    settled = closed and all(pod.ended for pod in observed.pods)
    return Plan(
        objects=() if closed else plan_objects(observed),
        status=status if worth_writing(observed.job.status, status, now) else None,
        pods=(*plan_members(observed, sidecar_image, now), *plan_label(observed, office)),
        link=plan_link(observed, office),
        events=plan_events(observed, office, status),
        again_in_s=None if settled else TRY_AGAIN_S if observed.refusals else LOOK_AGAIN_S,
    )

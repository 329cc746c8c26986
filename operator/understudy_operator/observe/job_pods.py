"""Lists the pods of a job's child Jobs that plan/jobset/pod_queries.py asks for, and keeps the answer until the next
one.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from understudy_operator.observe.read import read_pod
from understudy_operator.observe.store import Raw, key_of
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.cluster_objects import ChildJob, Node, Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.ownership import controller_uid
from understudy_operator.plan.jobset.pod_queries import EVERY_S, PODS, PodQueries, plan_pod_queries, query_pause_s
from understudy_operator.runtime.kept_fields import select_pod_fields
from understudy_protocol import pod as names

#: job, label selector, field selector, limit
ListSome = Callable[[Job, str, str, int], Awaitable[Sequence[Raw]]]
log = logging.getLogger(__name__)


class JobPods:
    """The listed pods of one job."""

    def __init__(self, list_some: ListSome, steady: Callable[[], float]) -> None:
        self._list, self._steady = list_some, steady
        self._queries = PodQueries()
        self._again_at, self._pause_s = 0.0, EVERY_S
        self._pods: tuple[Pod, ...] = ()

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods that a Job waits for, as last listed. Empty if no Job waits."""
        return self._pods

    async def refresh(self, job: Job, children: Sequence[ChildJob], nodes: Mapping[str, Node], now: float) -> None:
        """List the pods, if that is due. now: wall time. A failed list is retried after a pause."""
        has_jobs_to_query = bool(children) and job.injected is None and not (job.terminal or job.deleting)
        wanted = plan_pod_queries(children, nodes, now) if has_jobs_to_query else PodQueries()
        if not wanted.selectors:
            self._queries, self._pods, self._pause_s = wanted, (), EVERY_S
        elif wanted != self._queries or self._steady() >= self._again_at:
            await self._list_pods(job, children, wanted)

    async def _list_pods(self, job: Job, children: Sequence[ChildJob], wanted: PodQueries) -> None:
        self._again_at = self._steady() + EVERY_S
        labels = f"{keys.UID}={job.uid},!{names.LABEL_JOB_UID}"
        raws = [await self._list(job, labels, fields, PODS) for fields in wanted.selectors]
        uids = {child.uid for child in children}  # users can copy labels
        own = (raw for answer in raws for raw in answer if controller_uid(raw) in uids)
        found = {pod.uid: pod for pod in map(_read, own) if pod is not None}
        self._pods = tuple(found[uid] for uid in sorted(found))
        self._pause_s = query_pause_s(self._pause_s if wanted == self._queries else 0.0, self._pods)
        self._queries, self._again_at = wanted, self._steady() + self._pause_s


def _read(raw: Raw) -> Pod | None:
    """None if the pod is malformed: nothing can be reported about it."""
    try:
        return read_pod(select_pod_fields(raw))
    except Exception as error:  # noqa: BLE001 (any error concerns this pod alone)
        log.info("pod %s is malformed: %r", "/".join(key_of(raw)), error)
        return None

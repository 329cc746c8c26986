"""The objects of one namespace, or of all, as the verbs ask for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from understudy_cli import fields
from understudy_cli.api import FORBIDDEN, NOT_FOUND, Api, collection
from understudy_cli.command_errors import NoAnswer, NotFound
from understudy_cli.facts import INJECTED_JOB, TRAINING_JOB, Event, Job, Pod, Recovery
from understudy_cli.fields import Raw
from understudy_cli.following import Collection, Followed
from understudy_cli.reading import (
    read_event,
    read_job,
    read_node,
    read_pod,
    read_pool,
    read_recovery,
    recoveries_of,
)

GROUP = "understudy.dev/v1alpha1"
PLURALS = {TRAINING_JOB: "trainingjobs", INJECTED_JOB: "injectedjobs"}
POOLS, RECOVERIES, PODS, EVENTS, NODES = "hotsparepools", "recoveries", "pods", "events", "nodes"
#: Pods of jobs and of pools.
OUR_PODS = "understudy.dev/job-uid"


@dataclass(frozen=True)
class Cluster:
    """namespace: "" for all."""

    api: Api
    namespace: str

    def jobs(self) -> tuple[Raw, ...]:
        """TrainingJobs and InjectedJobs. Raises NotFound if the cluster does not have the kinds."""
        return tuple(raw for plural in PLURALS.values() for raw in self._list_ours(plural))

    def pools(self) -> tuple[Raw, ...]:
        return self._list_ours(POOLS)

    def pods(self) -> tuple[Raw, ...]:
        """The pods of all jobs and pools."""
        return self.api.list(collection("v1", PODS, self.namespace), OUR_PODS).items

    def nodes(self) -> tuple[Raw, ...] | None:
        """None if the account may not list nodes: the role view does not have this right."""
        if not self.api.may("list", NODES):
            return None
        return self.api.list(collection("v1", NODES)).items

    def job(self, name: str) -> Job:
        """Raises NotFound."""
        plural = PLURALS[kind_named(name)]
        try:
            return read_job(self.api.get(f"{collection(GROUP, plural, self.namespace)}/{checked_name(name)}"))
        except NoAnswer as error:
            if error.status != NOT_FOUND:
                raise
            raise NotFound(
                f"there is no job {name} in namespace {self.namespace}; {self._known_jobs()}. Choose a namespace with "
                "-n"
            ) from error

    def _known_jobs(self) -> str:
        """For the message about a job that does not exist."""
        try:
            known = sorted(fields.text(raw, "metadata", "name") for raw in self.jobs())
            return f"its jobs: {', '.join(known) or 'none'}"
        except NoAnswer as error:
            if error.status != FORBIDDEN:
                raise
            return "this account may not list its jobs"

    def pods_of(self, job: Job) -> tuple[Raw, ...]:
        return self.api.list(collection("v1", PODS, job.namespace), job.pod_selector).items

    def recoveries_of(self, job: Job) -> tuple[Recovery, ...]:
        """The oldest first."""
        return recoveries_of(job, map(read_recovery, self._recoveries(job)))

    def events_of(self, job: Job) -> tuple[Event, ...]:
        selector = f"involvedObject.uid={job.uid}"
        found = self.api.list(collection("v1", EVENTS, job.namespace), fields_of=selector)
        return tuple(map(read_event, found.items))

    def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of this pod, and not of a later one of its name. Raises NoAnswer."""
        self.api.annotate(f"{collection('v1', PODS, pod.namespace)}/{pod.name}", pod.uid, annotations)

    def annotate_job(self, job: Job, annotations: Mapping[str, str | None]) -> None:
        """Raises NoAnswer."""
        path = f"{collection(GROUP, PLURALS[job.kind], job.namespace)}/{job.name}"
        self.api.annotate(path, job.uid, annotations)

    def follow_jobs(self) -> Followed:
        """Raises NotFound if the cluster does not have the kinds."""
        self._served()
        return Followed(self.api, tuple(self._jobs_to_follow()))

    def follow(self, job: Job) -> Followed:
        """One watch for the job, one for its pods, and one for its recoveries if the account may read them."""
        jobs = collection(GROUP, PLURALS[job.kind], job.namespace)
        collections = [
            Collection(PLURALS[job.kind], jobs, fields_of=f"metadata.name={job.name}", read=read_job),
            Collection(PODS, collection("v1", PODS, job.namespace), job.pod_selector, read=read_pod),
        ]
        if self._has_recoveries(job.namespace):
            path = collection(GROUP, RECOVERIES, job.namespace)
            collections.append(Collection(RECOVERIES, path, job.recovery_selector, read=read_recovery))
        return Followed(self.api, tuple(collections))

    def follow_pods(self, job: Job) -> Followed:
        path = collection("v1", PODS, job.namespace)
        return Followed(self.api, (Collection(PODS, path, job.pod_selector, read=read_pod),))

    def everything(self) -> tuple[Collection, ...]:
        """One collection for each kind that the account may watch in the namespace. Nodes have none. Raises NotFound if
        the cluster does not have the kinds.
        """
        found = [
            *self._jobs_to_follow(),
            Collection(POOLS, collection(GROUP, POOLS, self.namespace), read=read_pool),
            Collection(PODS, collection("v1", PODS, self.namespace), OUR_PODS, read=read_pod),
        ]
        if self._has_recoveries(self.namespace):
            found.append(Collection(RECOVERIES, collection(GROUP, RECOVERIES, self.namespace), read=read_recovery))
        if self.api.may("watch", EVENTS, namespace=self.namespace):
            ours = f"involvedObject.apiVersion={GROUP}"
            found.append(Collection(EVENTS, collection("v1", EVENTS, self.namespace), fields_of=ours, read=read_event))
        return tuple(found)

    def every_node(self) -> tuple[Collection, ...]:
        """Empty if the account may not watch nodes."""
        may = self.api.may("list", NODES) and self.api.may("watch", NODES)
        return (Collection(NODES, collection("v1", NODES), read=read_node),) if may else ()

    def _jobs_to_follow(self) -> Iterable[Collection]:
        paths = ((plural, collection(GROUP, plural, self.namespace)) for plural in PLURALS.values())
        return (Collection(plural, path, read=read_job) for plural, path in paths)

    def _list_ours(self, plural: str) -> tuple[Raw, ...]:
        try:
            return self.api.list(collection(GROUP, plural, self.namespace)).items
        except NoAnswer as error:
            if error.status != NOT_FOUND:
                raise
            raise _not_installed(plural) from error

    def _served(self) -> set[str]:
        """The kinds of Understudy that the cluster has, as plurals. Raises NotFound if it has none."""
        try:
            resources = self.api.get(f"/apis/{GROUP}")
        except NoAnswer as error:
            if error.status != NOT_FOUND:
                raise
            raise _not_installed(PLURALS[TRAINING_JOB]) from error
        return {fields.text(entry, "name") for entry in fields.entries(resources, "resources")}

    def _recoveries(self, job: Job) -> Iterable[Raw]:
        """Empty if the cluster does not have the kind, or the account may not read it: the status has the newest."""
        try:
            return self.api.list(collection(GROUP, RECOVERIES, job.namespace), job.recovery_selector).items
        except NoAnswer as error:
            if error.status not in (NOT_FOUND, FORBIDDEN):
                raise
            return ()

    def _has_recoveries(self, namespace: str) -> bool:
        """Whether the cluster has the kind, and the account may watch it. Raises NotFound if it has no kind of ours."""
        return RECOVERIES in self._served() and self.api.may("watch", RECOVERIES, "understudy.dev", namespace)


def _not_installed(plural: str) -> NotFound:
    return NotFound(
        f"the cluster has no {plural} of understudy.dev: install Understudy, or check the context with kubectl config "
        "current-context"
    )


def kind_named(name: str) -> str:
    """The name of an InjectedJob has a dot, as in jobset.llm. That of a TrainingJob has none."""
    return INJECTED_JOB if "." in name else TRAINING_JOB


def checked_name(name: str) -> str:
    """A name that can be a part of a path. Raises NotFound."""
    if not name or not name.replace("-", "").replace(".", "").isalnum() or not name.isascii() or len(name) > 253:
        raise NotFound(f"{name!r} cannot be the name of a job: expected letters, digits, dashes and dots")
    return name

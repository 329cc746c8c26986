"""One worker for each job: observes, calls the plan, executes it. It decides nothing.

The jobs take turns at planning, one in each turn of the event loop. Otherwise the plans of all jobs that changed would
follow one another, and nothing would be read or written for any job meanwhile: for 7 s with 2,000 jobs. A plan for
thousands of pods takes 0.1 s, so it is made in a thread.
"""

import asyncio
import logging
import secrets
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from understudy_operator.apply.adoption_link import Adopter, AdoptionKeys
from understudy_operator.apply.coordinator_link import CoordinatorLink
from understudy_operator.apply.executor import Executor
from understudy_operator.controllers.node_memory import NodeMemory
from understudy_operator.controllers.reconcile_loop import CONFLICT_S, ReconcileLoop, ReconcileResult
from understudy_operator.controllers.supervisor import TaskSupervisor
from understudy_operator.metrics.operator_metrics import JobMetrics, OperatorMetrics
from understudy_operator.observe.job_pods import JobPods
from understudy_operator.observe.read import read_job, read_pod
from understudy_operator.observe.read_child import read_child
from understudy_operator.observe.read_injected import read_injected
from understudy_operator.observe.read_node import NodeReader, read_node
from understudy_operator.observe.read_pool import JobForPools, job_for_pools, pods_of, split, view_of
from understudy_operator.observe.store import Key, Kind, OwnerKey, Raw, Store, job_kind
from understudy_operator.plan.facts.cluster_objects import ChildJob, Node
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.observed import TERMINAL_STATES, Coordination, Observed
from understudy_operator.plan.facts.ownership import INJECTED_KIND, KIND, controller_uid, object_uid
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.pool_facts import PoolView
from understudy_operator.plan.facts.refusals import Refusal
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.sidecar_settings import DEFAULT_SIDECAR_SETTINGS, SidecarSettings
from understudy_operator.plan.facts.status import JobStatus
from understudy_operator.plan.intents import (
    CREATE_POD,
    AdoptSpare,
    ClaimWarm,
    Create,
    DeletePod,
    DeleteSecret,
    DryRun,
    Event,
    Follow,
    Intent,
    Plan,
    PodIntent,
    Remove,
    Unfollow,
)
from understudy_operator.plan.leadership.coordination import JOB_DELETED
from understudy_operator.plan.leadership.elections import UNREACHABLE_S
from understudy_operator.plan.manifests.metadata import subdomain
from understudy_operator.plan.manifests.object_names import coordinator_service_name
from understudy_operator.plan.manifests.podspec import claim_name
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.plan.status.events import failed_reconcile, recorded_events
from understudy_operator.plan.status.next_status import is_news
from understudy_operator.plan.world.retries import Retries, is_retry_due
from understudy_operator.runtime.api import API_FAILURES
from understudy_operator.runtime.clock import Clock, jittered
from understudy_operator.runtime.fair_semaphore import FairSemaphore
from understudy_operator.runtime.line import Keys, LineLimits, Share
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason

#: A plan deletes pods only for this long after its observation. Then the next reconcile decides again.
DELETES_FOR_S = 5.0
#: At most this many changed pods are read at once (5 ms). A plan for at least this many is made in a thread (10 ms).
READ_AT_ONCE, PLANNED_IN_A_THREAD = 100, 500
#: Status writes without an answer that are remembered. Beyond this the oldest are dropped.
MOST_UNCONFIRMED = 50
#: Their names in /healthz and in the metric of ended tasks.
RECONCILES, LINES = "reconciles of jobs", "lines to coordinators"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Unconfirmed:
    """A status with events that was sent and got no answer. The API server may have written it."""

    replaced_version: str  # the resourceVersion that it replaces
    status: JobStatus
    events: Sequence[Event]


@dataclass(frozen=True)
class _Sending:
    """A status that is being sent."""

    replaced: Job  # the job whose status it replaces
    status: JobStatus

    def has_result(self, job: Job) -> bool:
        """Whether the job is the result of this write: nothing else has changed in it."""
        written = replace(self.replaced, status=self.status, completed_at=job.completed_at)
        return job == replace(written, resource_version=job.resource_version)


def planning_turns() -> FairSemaphore:
    """Of all jobs. Its addresses are namespaces."""
    return FairSemaphore(1, 1, sys.maxsize)


class JobWorker:
    """Reconciles one job until it is gone."""

    def __init__(
        self,
        key: Key,
        store: Store,
        executor: Executor,
        keyring: Keyring,
        sidecar_image: str,
        on_gone: Callable[[Key], None],
        clock: Clock,
        node_reader: NodeReader = read_node,
        node_memory: NodeMemory | None = None,
        metrics: OperatorMetrics | None = None,
        has_kueue: Callable[[], bool | None] = lambda: None,
        line_limits: LineLimits | None = None,
        turns: FairSemaphore | None = None,
        supervisor: TaskSupervisor | None = None,
        sidecar_settings: SidecarSettings = DEFAULT_SIDECAR_SETTINGS,
    ) -> None:
        self._key, self._store, self._executor, self._keyring = key, store, executor, keyring
        self._sidecar_image, self._on_gone, self._clock = sidecar_image, on_gone, clock
        self._read_node, self._node_memory = node_reader, node_memory
        self._sidecar_settings, self._has_kueue, self._line_limits = sidecar_settings, has_kueue, line_limits
        self._turns = planning_turns() if turns is None else turns
        self._metrics = OperatorMetrics() if metrics is None else metrics
        self._job_metrics = JobMetrics(self._metrics)
        self._link: CoordinatorLink | None = None
        self._coordination = Coordination()
        self._retries = Retries()
        self._tried_generation = 0  # the generation of which all intents were tried once
        self._adopter = Adopter(self.enqueue, clock.wall)
        self._job_pods = JobPods(executor.jobs.list_pods, clock.steady)
        self._outbox, self._recoveries = executor.outbox(), executor.recovery_writer()
        self._unconfirmed: deque[_Unconfirmed] = deque(maxlen=MOST_UNCONFIRMED)
        self._sending: _Sending | None = None
        self._job_uid = ""
        self._link_of = ""  # the membership for which the link was created
        self._secret_writes = SecretWrites()
        self._status_written_at = 0.0  # as in Observed
        self._topology_key = ""  # of the spares
        self._concerned_by: frozenset[str] | None = None  # names of nodes; None: any node may concern the job
        self._checked_generation = 0  # the generation whose templates passed the dry run
        self._has_queued_jobs = False  # as in Observed
        self._for_pools: JobForPools | None = None  # when it was last compared
        self._metrics.supervises(LINES)
        supervisor = TaskSupervisor(self._metrics) if supervisor is None else supervisor
        log_context = {"namespace": key[0], "job": key[1]}
        on_begin = partial(self._metrics.waited, kind_at(key))
        name = f"job {'/'.join(key)}"
        self.loop = ReconcileLoop(name, self._reconcile, log_context, supervisor, RECONCILES, on_begin)

    def enqueue(self) -> None:
        self.loop.enqueue()

    def is_concerned_by(self, node: str) -> bool:
        """Whether a change of that node, other than of its labels, concerns the job at once. For any other node, the
        next reconcile, which comes within 30 s, only updates status.avoidedNodes. A running job writes this with its
        next progress.
        """
        return self._concerned_by is None or node in self._concerned_by

    def is_concerned(self, before: Node, node: Node) -> bool:
        """Whether that change of a node's labels concerns the job: only the topology key of its spares does."""
        return before.labels.get(self._topology_key) != node.labels.get(self._topology_key)

    def has_news_for_pools(self) -> bool:
        """Whether the stored job has changed, since the last call, in what pools read of it. Its progress does not."""
        before, self._for_pools = self._for_pools, job_for_pools(self._store, self._key)
        return before != self._for_pools

    @property
    def misses_coordinator(self) -> bool:
        """Whether the job has trained and has no known coordinator now."""
        if self._link is None:
            return False
        job, coordination = self._read(), self._link.coordination
        return (
            job is not None
            and job.round >= 0
            and not coordination.coordinator_uid
            and self._clock.wall() - coordination.since >= UNREACHABLE_S
        )

    @property
    def is_own_write(self) -> bool:
        """Whether the stored job is the result of the status write that is being sent. The watch often reports it
        before its answer comes.
        """
        if self._sending is None:
            return False
        job = self._read()
        return job is not None and self._sending.has_result(job)

    async def stop(self, finish_s: float = 0.0) -> None:
        """finish_s: the time that a running reconcile and waiting events have left."""
        stopped_at = self._clock.steady()
        await self.loop.stop(finish_s)
        await self._outbox.stop(max(0.0, finish_s - (self._clock.steady() - stopped_at)))
        await self._recoveries.stop(max(0.0, finish_s - (self._clock.steady() - stopped_at)))
        await self._unfollow(Unfollow())
        await self._adopter.close()

    async def _reconcile(self) -> ReconcileResult | None:
        raw = self._store.get(job_kind(self._key), self._key)
        if raw is None and self._store.is_malformed(job_kind(self._key), self._key):
            return ReconcileResult(None)  # it exists, and was not deleted
        if raw is None:
            await self._forget_job()
            await self._outbox.stop()
            raw = self._store.get(job_kind(self._key), self._key)  # a job that was recreated meanwhile
        if raw is None:
            self._on_gone(self._key)  # nothing is awaited since the last look: an enqueue would be lost
            return None
        job = self._read()
        if job is None:
            return ReconcileResult(
                None
            )  # it cannot be read: the store has reported the cause, and its next change enqueues this worker
        with self._metrics.time_reconcile(kind_at(self._key), API_FAILURES):
            try:
                return await self._reconcile_job(job)
            except API_FAILURES:
                raise
            except Exception as error:
                self._executor.subjects.add_events(self._outbox, job, [failed_reconcile(error)])
                raise

    async def _reconcile_job(self, job: Job) -> ReconcileResult:
        self._prepare(job)
        if job.uid != self._job_uid:  # another job of the same name
            await self._forget_job()
            self._job_uid, self._job_metrics = job.uid, JobMetrics(self._metrics)
            self._executor.subjects.add_events(self._outbox, job, recorded_events(job.status, self._clock.wall()))
        self._add_unconfirmed_events(job)
        self._job_metrics.on_read(job.resource_version, job.status)
        await self._gather(job)
        async with self._turns.slot(self._key[0]):
            await asyncio.sleep(0)  # else a job that asks next would plan in the same turn of the event loop
            now = self._read()
            if now is None or object_uid(now) != object_uid(job):
                return ReconcileResult(0.0)  # it is gone, or replaced by another job of the same name
            job = now
            self._prepare(job)
            began = self._clock.steady()
            # The observation is of one moment, and nothing changes it.
            observed = self._observe(job)
            make_plan = partial(reconcile, observed, self._sidecar_image, self._clock.wall())
            plan = make_plan() if len(observed.pods) < PLANNED_IN_A_THREAD else None
        if plan is None:
            plan = await asyncio.to_thread(make_plan)
        planning_s = self._clock.steady() - began
        done = await self._execute(job, plan, began)
        return ReconcileResult(plan.requeue_after_s if done else jittered(CONFLICT_S), planning_s)

    def _read(self) -> Job | None:
        """None if there is no job, or it cannot be read."""
        read = read_injected if job_kind(self._key) is Kind.INJECTED else read_job
        job = self._store.fact(job_kind(self._key), self._key, read)
        return None if job is None else replace(job, sidecar_settings=self._sidecar_settings)

    def _prepare(self, job: Job) -> None:
        self._topology_key = "" if job.spec.world is None else job.world.topology_key
        if job.generation != self._tried_generation:
            self._retries = Retries()  # rejections of another spec do not apply to this one

    async def _gather(self, job: Job) -> None:
        """Send all requests to the API server. They may take half a minute, in which much can change."""
        await self._read_changed_pods(job)
        await self._resolve_unanswered(job)
        await self._executor.read_unknown_nodes(pods_of(self._store, _owner(job)))
        try:
            nodes = self._store.nodes(self._read_node)
            await self._job_pods.refresh(job, self._children(job), nodes, self._clock.wall())
        except API_FAILURES as error:  # these pods are only reported: without an answer, the previous list stays
            log.warning("the pods of Jobs that wait could not be listed: %r", error)

    async def _read_changed_pods(self, job: Job) -> None:
        """A few at a time: the store keeps what was read, and a job of thousands of new pods takes 0.2 s."""
        for number, key in enumerate(self._store.unread_of_job(Kind.POD, _owner(job)), 1):
            self._store.fact(Kind.POD, key, read_pod)
            if not number % READ_AT_ONCE:
                await asyncio.sleep(0)

    async def _resolve_unanswered(self, job: Job) -> None:
        if job.deleting:
            self._executor.forget(job.uid)  # objects that were created nevertheless are deleted with the job
            return
        now = self._clock.wall()
        await self._executor.resolve_unanswered(
            job, refused_too=is_retry_due(CREATE_POD, self._retries.paused(now), now)
        )

    async def _forget_job(self) -> None:
        """The job was deleted. Its name may belong to another job now."""
        self._executor.forget(self._job_uid)
        await self._recoveries.stop()
        await self._unfollow(JOB_DELETED)
        await self._adopter.close()
        self._coordination, self._checked_generation, self._has_queued_jobs = Coordination(), 0, False
        self._secret_writes = SecretWrites()
        self._unconfirmed.clear()
        self._retries, self._tried_generation = Retries(), 0

    def _observe(self, job: Job) -> Observed:
        service = self._owned_object(Kind.SERVICE, job, coordinator_service_name(job.name))
        address = "" if service is None else str(service.get("spec", {}).get("clusterIP", ""))
        pods, claimed = split(pods_of(self._store, _owner(job)), job.uid)
        self._concerned_by = None if claimed else concerning_nodes(job, pods)
        children = self._children(job)
        self._has_queued_jobs = self._has_queued_jobs or any(child.queue for child in children)
        return Observed(
            job=job,
            pods=pods,
            past_stays=self._store.past_stays(_owner(job)),
            nodes=self._store.nodes(self._read_node),
            coordination=self._coordination if self._link is None else self._link.coordination,
            keyring=self._keyring,
            has_hostnames_service=self._owned_object(Kind.SERVICE, job, subdomain(job)) is not None,
            coordinator_address=f"{address}:{names.COORDINATOR_PORT}" if address else "",
            entropy=secrets.token_hex(32),
            refusals=self._retries.refusals if self._tried_generation == job.generation else None,
            paused=self._retries.paused(self._clock.wall()),
            secret_writes=self._secret_writes,
            status_written_at=self._status_written_at,
            running_jobs=len(self._executor.followed),
            children=children,
            job_pods=self._job_pods.pods,
            claims=frozenset(self._claims(job)),
            templates_checked=self._checked_generation == job.generation,
            offenders={} if self._node_memory is None else self._node_memory.offenders.of(job.namespace),
            claimed=claimed,
            pool=self._pool_of(job),
            adoptions=self._adopter.adoptions,
            has_kueue=self._has_kueue(),
            has_queued_jobs=self._has_queued_jobs,
        )

    def _children(self, job: Job) -> tuple[ChildJob, ...]:
        return self._store.facts_of_job(Kind.CHILD, _owner(job), read_child, tuple)

    def _claims(self, job: Job) -> Iterator[str]:
        """The claims that exist. A claim that outlives jobs may have any owner."""
        for claim in job.spec.claims:
            name = claim_name(job, claim.name)
            existing = self._store.get(Kind.CLAIM, (job.namespace, name))
            if existing is not None and (claim.retained or controller_uid(existing) == job.uid):
                yield name

    def _pool_of(self, job: Job) -> PoolView | None:
        """The pool that the job names."""
        name = "" if job.spec.world is None else job.spec.world.pool
        return view_of(self._store, self._keyring, job.namespace, name) if name else None

    def _key_of(self, job: Job) -> str:
        """The key of the current attempt, or of the one in which the job ended."""
        return self._keyring.of_job(job.namespace, job.uid, job.attempt)

    def _owned_object(self, kind: Kind, job: Job, name: str) -> Raw | None:
        """The object of that name, if this job owns it, and not a deleted job of the same name."""
        raw = self._store.get(kind, (job.namespace, name))
        return raw if raw is not None and controller_uid(raw) == object_uid(job) else None

    async def _execute(self, job: Job, plan: Plan, observed_at: float) -> bool:
        """In the order that Plan promises. False: the job has changed since it was read, so the rest was skipped."""
        if await self._closed_before_suspension(plan):
            self.enqueue()
            return False
        self._adopter.follow([(intent, self._keys_of(job, intent)) for intent in plan.adopt])
        reported, created = self._retries.refusals, [await self._write_object(job, intent) for intent in plan.objects]
        self._record_refusals(plan.objects, filter(None, created))
        if not all(created):
            self.enqueue()  # an object is new: pods may be possible now
        if plan.dry_runs:
            refused = await self._executor.jobs.dry_run(job, plan.dry_runs)
            self._record_refusals([DryRun()], refused)
            if not refused:
                self._checked_generation = job.generation
                self.enqueue()
        if plan.status is not None and not await self._write_status(job, plan.status, plan.events):
            return False
        self._executor.subjects.add_events(self._outbox, job, plan.events)
        if plan.recoveries is not None:
            self._recoveries.update(job, plan.recoveries)
        self._record_refusals(plan.jobs, await self._executor.jobs.execute(job, plan.jobs))
        self._record_refusals(plan.claims, await self._executor.pools.claims(job.namespace, job.uid, plan.claims))
        if any(isinstance(claim, ClaimWarm) for claim in plan.claims):
            self.enqueue()  # to adopt them
        pods = self._drop_stale_deletions(plan.pods, observed_at)
        self._record_refusals(pods, await self._executor.pods(job, pods))
        self._retries = self._retries.keep_wanted(plan, self._clock.wall())
        if self._tried_generation != job.generation or reported != self._retries.refusals:
            self._tried_generation = job.generation
            self.enqueue()  # to report it
        await self._follow(job, plan.link)
        if plan.remove and self._outbox.is_empty:
            self._record_refusals([Remove()], await self._executor.remove(job, plan.remove))
        return True

    async def _write_object(self, job: Job, intent: Create | DeleteSecret) -> Refusal | None:
        if isinstance(intent, DeleteSecret):
            refusal = await self._executor.delete_secret(job, intent)
            if refusal is None:
                self._secret_writes = self._secret_writes.after_deletion(intent.name)
            return refusal
        refusal = await self._executor.create(intent)
        if refusal is None and intent.manifest["kind"] == "Secret":
            name = intent.manifest["metadata"]["name"]
            self._secret_writes = self._secret_writes.after_creation(name, self._clock.wall())
        return refusal

    async def _closed_before_suspension(self, plan: Plan) -> bool:
        """Before status says that the job is suspended: its coordinator may have closed the rendezvous as succeeded.

        True also if the coordinator stops responding here. The next reconcile decides how long to wait for the pods'
        report.
        """
        end = plan.link.end if isinstance(plan.link, Unfollow) else None
        if plan.status is None or self._link is None or end is None or end.reason is not CloseReason.SUSPENDED:
            return False
        responded = bool(self._link.coordination.coordinator_uid)
        closed = await self._link.end(end)
        return responded if closed is None else closed.reason in TERMINAL_STATES

    def _drop_stale_deletions(self, intents: Sequence[PodIntent], observed_at: float) -> Sequence[PodIntent]:
        """Drop the deletions if the writes before them took so long that a lost member may be back."""
        if self._clock.steady() - observed_at < DELETES_FOR_S or not any(isinstance(x, DeletePod) for x in intents):
            return intents
        self.enqueue()
        return [intent for intent in intents if not isinstance(intent, DeletePod)]

    def _record_refusals(self, tried: Iterable[Intent], refusals: Iterable[Refusal]) -> None:
        """Record the API server's rejections of these intents."""
        refused = tuple(refusals)
        self._retries = self._retries.after(tried, refused, self._clock.wall())
        if refused:
            self.enqueue()  # to compute when they are retried

    async def _write_status(self, job: Job, status: JobStatus, events: Sequence[Event]) -> bool:
        """False: the job has changed since it was read."""
        self._job_metrics.on_write(job.resource_version, job.status, status)
        sent = _Unconfirmed(job.resource_version, status, events)
        if events:
            self._unconfirmed.append(sent)
        self._sending = _Sending(job, status)
        try:
            done = await self._executor.subjects.status(job, status)
        finally:
            self._sending = None
        if done:
            self._status_written_at = self._clock.wall()
            self._unconfirmed.clear()  # this write replaced the version that all of them would have replaced
        elif events:
            self._unconfirmed.remove(sent)
        self._job_metrics.on_written(done=done)
        if done and is_news(job.status, status):
            self.enqueue()
        return done

    def _add_unconfirmed_events(self, job: Job) -> None:
        """Add the events of a status write that was done without an answer: at most one write per version was done."""
        decided = [sent for sent in self._unconfirmed if sent.replaced_version != job.resource_version]
        for sent in decided:
            self._unconfirmed.remove(sent)
        written = next((sent for sent in decided if sent.status == job.status), None)
        if written is not None:
            self._executor.subjects.add_events(self._outbox, job, written.events)

    def _keys_of(self, job: Job, intent: AdoptSpare) -> AdoptionKeys:
        return AdoptionKeys(self._keys(self._keyring.of_pool(job.namespace, intent.pool_uid)), self._key_of(job))

    def _keys(self, membership: str) -> Keys:
        return Keys(bytes.fromhex(membership), self._keyring.operator())

    async def _follow(self, job: Job, link: Follow | Unfollow | None) -> None:
        match link:
            case Unfollow() as unfollow:
                await self._unfollow(unfollow)
            case Follow() as follow:
                if self._link is not None and self._link.has_ended:
                    self._metrics.task_restarts(LINES)
                if self._link is not None and (self._link.has_ended or self._link_of != job.membership):
                    await self._unfollow(Unfollow())
                if self._link is None:
                    keys = self._keys(self._key_of(job))
                    share = Share(self._key[0], self._line_limits)
                    self._link = CoordinatorLink(job.membership, keys, self._coordination, self.enqueue, share)
                    self._link_of = job.membership
                    self._executor.followed.add(self._key)
                self._link.follow(follow)

    async def _unfollow(self, unfollow: Unfollow) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            self._coordination = link.coordination
            self._executor.followed.discard(self._key)
            if unfollow.end is not None:
                await link.end(unfollow.end)
            await link.close()


def concerning_nodes(job: Job, pods: Pods) -> frozenset[str] | None:
    """The nodes of a job that runs and waits for nothing. None: it may wait for any node, or for a pool's spare on it.
    Also None for a job without a launcher or with Jobs besides its world: the operator does not see all of their pods.
    """
    world = None if job.injected is not None else job.spec.world
    nodes = frozenset(pods.by_node)
    if world is None or world.pool or len(world.groups) < len(job.spec.replicated_jobs):
        return None
    return nodes if job.status.phase == "Running" and pods and "" not in nodes else None


def _owner(job: Job) -> OwnerKey:
    return job.namespace, job.uid


def kind_at(key: Key) -> str:
    return INJECTED_KIND if job_kind(key) is Kind.INJECTED else KIND

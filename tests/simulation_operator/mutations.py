"""Rules that are broken on purpose, one at a time: the simulation has to find each.

A broken rule whose damage the next list repairs (a late event that wins) belongs to the unit tests of the store, and
the times of the election to those of plan/leadership/lease_election.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from tests.simulation_operator.faults import Fault
from tests.simulation_operator.rules import Rule
from tests.simulation_operator.run import Case
from understudy_operator.apply import recovery_objects
from understudy_operator.apply.election import Election
from understudy_operator.apply.events import Outbox, send_event
from understudy_operator.apply.executor import Executor
from understudy_operator.apply.pools import PoolExecutor
from understudy_operator.controllers import job_worker as worker
from understudy_operator.controllers.job_worker import JobWorker
from understudy_operator.observe import store
from understudy_operator.observe.resync import Resync
from understudy_operator.observe.store import Key, Kind, Raw, Store, owners_of
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.secret_writes import SecretWrites, can_be_mounted
from understudy_operator.plan.intents import Plan
from understudy_operator.plan.jobset import children
from understudy_operator.plan.manifests.child_jobs import Written
from understudy_operator.plan.pool import adopting, claiming
from understudy_operator.plan.pool import reconcile_pool as reconcile
from understudy_operator.plan.status import recovery_history
from understudy_operator.plan.world import objects
from understudy_operator.runtime.api import API_FAILURES, Api
from understudy_protocol import pod as names

_gather, _merged = JobWorker._gather, children.merge_template


@dataclass(frozen=True)
class Mutation:
    """breaks: the rules that it violates; other violations are no evidence that the simulation checks them."""

    description: str
    breaks: tuple[Rule, ...]
    where: Any
    name: str
    instead: Any
    warm: bool = False  # pools whose spares have a launcher
    #: Changes of the setup that make a violation likely, and faults in place of the drawn ones, each this long after a
    #: moment that the seed decides.
    setup: Mapping[str, Any] = field(default_factory=dict)
    faults: Sequence[tuple[float, str]] = ()

    def case(self, drawn: Case) -> Case:
        """The drawn case, in which a violation of this rule is likely."""
        if not self.faults:
            return drawn
        rng = random.Random(f"mutation-{drawn.seed}")
        at = rng.uniform(15.0, 40.0)
        faults = [
            Fault(at + after_s, description, rng.uniform(14.5, 17.0), rng.random())
            for after_s, description in self.faults
        ]
        return replace(drawn, setup=replace(drawn.setup, **self.setup), faults=tuple(faults))


async def _settles_nothing(self: Executor, job: Any, refused_too: bool = True) -> None:
    del self, job, refused_too


def _resolves_nothing_unanswered(self: Executor, job_uid: str, name: str) -> None:
    del self, job_uid, name


def _may_write_for_an_hour(self: Election) -> float:
    del self
    return 3600.0


def _lists_only_add(self: Store, kind: Kind, raws: list[Raw], asked_at: float) -> None:
    del asked_at
    for raw in raws:
        self.put(kind, raw)


async def _lists_once(self: Resync) -> None:
    while not self.done_once:
        with suppress(*API_FAILURES):
            await self.list_all(self.due())
            self.done_once = True
    self._on_listed()
    await asyncio.Event().wait()


async def _sends_once(self: Outbox) -> None:
    while self._waiting:
        _, regarding, event = self._waiting.popleft()
        with suppress(*API_FAILURES):
            await send_event(self._api, self._pace, regarding, event)


async def _observes_before_it_gathers(self: JobWorker, job: Job) -> None:
    observed = JobWorker._observe(self, job)
    await _gather(self, job)
    self._observe = lambda _: observed  # type: ignore[method-assign,assignment]


def _derives_another_key_each_time(self: Keyring, namespace: str, uid: str, attempt: int) -> str:
    del self, namespace, uid, attempt
    return f"{random.getrandbits(256):064x}"


def _creates_pods_without_secrets(
    name: str, writes: SecretWrites, now: float, *pods: Pods, injected: bool = False
) -> bool:
    del now
    return not can_be_mounted(name, writes, *pods, injected=injected)


def _creates_each(name: str, writes: SecretWrites, now: float, *pods: Pods, injected: bool = False) -> bool:
    del name, writes, now, pods, injected
    return True


async def _never_asks_the_coordinator(self: JobWorker, plan: Plan) -> bool:
    del self, plan
    return False


def _owner_by_label(raw: Raw) -> str:
    return str(raw["metadata"].get("labels", {}).get(names.LABEL_JOB_UID, ""))


def _keeps_written_fields(present: Raw, wanted: Raw, written: Written) -> Raw:
    del written
    return _merged(present, wanted, {})


CALM: Mapping[str, Any] = {
    "jobs": ((4, 0),),
    **dict.fromkeys(("slow", "throttled", "failed", "unanswered", "event_lost", "event_twice", "event_late"), 0.0),
}
MUTATIONS = (
    Mutation(
        "an unanswered creation is not resolved",
        (Rule.CREATIONS_ARE_RESOLVED,),
        Executor,
        "resolve_unanswered",
        _settles_nothing,
    ),
    Mutation(
        "an answered creation stays unanswered",
        (Rule.CREATIONS_ARE_RESOLVED,),
        Executor,
        "_forget_unanswered",
        _resolves_nothing_unanswered,
    ),
    Mutation(
        "a write does not check the lease",
        (Rule.ONLY_THE_LEADER_WRITES,),
        Election,
        "may_write_for_s",
        _may_write_for_an_hour,
        setup={"replicas": 2, "throttled": 0.6},
        faults=[(0.0, "lose pods")],
    ),
    Mutation(
        "a list removes nothing", (Rule.THE_STORE_IS_TRUE, Rule.THE_STORE_IS_BOUNDED), Store, "replace", _lists_only_add
    ),
    Mutation(
        "nothing is listed after the start",
        (Rule.THE_STORE_IS_TRUE, Rule.THE_STORE_IS_BOUNDED),
        Resync,
        "run",
        _lists_once,
    ),
    Mutation(
        "a plan is made before the lists",
        (Rule.NO_POD_THAT_TRAINS_IS_DELETED,),
        JobWorker,
        "_gather",
        _observes_before_it_gathers,
        setup={**CALM, "aside": True, "list_unanswered": 0.3},
        faults=[(20.0, "lose line")],
    ),
    Mutation(
        "an unanswered event is not sent again",
        (Rule.RECORDED_FAULTS_HAVE_EVENTS,),
        Outbox,
        "_send_all",
        _sends_once,
        setup={"failed": 0.3},
        faults=[(0.0, "lose pods")],
    ),
    Mutation(
        "a new leader sends no event that status records",
        (Rule.RECORDED_FAULTS_HAVE_EVENTS,),
        worker,
        "recorded_events",
        lambda *_: (),
        setup={"failed": 0.3, "replicas": 2},
        faults=[(0.0, "lose pods"), (0.3, "kill")],
    ),
    Mutation(
        "a write of a Recovery on which the API server failed is not sent again",
        (Rule.RECORDED_FAULTS_HAVE_OBJECTS,),
        recovery_objects,
        "_must_repeat",
        lambda _: False,
        setup={"failed": 0.3},
        faults=[(0.0, "lose pods")],
    ),
    Mutation(
        "a recovery counts as written once it has ended",
        (Rule.RECORDED_FAULTS_HAVE_OBJECTS,),
        recovery_history,
        "SETTLED_S",
        0.0,
        faults=[(0.0, "lose pods")],
    ),
    Mutation(
        "a Secret is created in each reconcile",
        (Rule.REQUESTS_ARE_BOUNDED, Rule.NOTHING_IS_WRITTEN_WHEN_STABLE),
        objects,
        "is_to_be_created",
        _creates_each,
    ),
    Mutation(
        "a Secret that pods wait for is not created again",
        (Rule.A_JOB_HAS_ITS_PODS,),
        objects,
        "is_to_be_created",
        _creates_pods_without_secrets,
        setup=CALM,
        faults=[(0.0, "delete secret"), (0.1, "lose pods")],
    ),
    Mutation(
        "an object belongs to the job that its label names",
        (Rule.NO_POD_THAT_TRAINS_IS_DELETED, Rule.A_JOB_TRAINS),
        store,
        "owner_uid",
        _owner_by_label,
        setup={"aside": True},
        faults=[(0.0, "copy child")],
    ),
    Mutation(
        "a suspension does not ask the coordinator",
        (Rule.A_SUCCEEDED_JOB_TRAINS_NO_MORE,),
        JobWorker,
        "_closed_before_suspension",
        _never_asks_the_coordinator,
        setup=CALM,
        faults=[(0.0, "finish and suspend")],
    ),
    Mutation(
        "fields that a suspended job loses stay on its pods",
        (Rule.PODS_FOLLOW_THE_SPEC,),
        children,
        "merge_template",
        _keeps_written_fields,
        setup={**CALM, "aside": True},
        faults=[(0.0, "change while suspended")],
    ),
    Mutation(
        "the operator has another key than the pods",
        (Rule.PODS_ARE_CALLED_WITH_THEIR_KEY,),
        Keyring,
        "of_job",
        _derives_another_key_each_time,
    ),
)


def _forgets_the_version(self: Api, path: str, body: Any) -> Any:
    metadata = {name: value for name, value in body["metadata"].items() if name != "resourceVersion"}
    return _merge(self, path, {**body, "metadata": metadata})


def _releases_nothing(pods: Any, claimants: Any) -> tuple[Any, ...]:
    del pods, claimants
    return ()


def _has_taken_no_place(observed: Observed) -> frozenset[str]:
    del observed
    return frozenset()


async def _settles_no_claim(self: PoolExecutor, job_uid: str) -> None:
    del self, job_uid


def _keeps_unconcerned_pods(self: Store, kind: Kind, key: Key) -> None:
    entry = self._entries[kind].pop(key, None)
    for owner in () if entry is None else owners_of(kind, entry.raw):
        self._of_job[kind, owner].discard(key)
        self._facts_of_job.pop((kind, owner), None)


_merge = Api.merge
POOL_MUTATIONS = (
    Mutation("a claim has no resourceVersion", (Rule.A_SPARE_HAS_ONE_CLAIMANT,), Api, "merge", _forgets_the_version),
    # Found by an unanswered claim that stays forever. A second spare is claimed only if another one has become the best
    # meanwhile: otherwise the next reconcile claims the same one, is rejected because of its version, and reads it
    # again.
    Mutation(
        "an unanswered claim is not repeated",
        (Rule.CREATIONS_ARE_RESOLVED,),
        PoolExecutor,
        "resolve_unanswered",
        _settles_no_claim,
    ),
    Mutation(
        "claims of jobs that are gone stay", (Rule.NO_CLAIM_IS_LEFT,), reconcile, "plan_releases", _releases_nothing
    ),
    Mutation(
        "a claim that is carried out stays",
        (Rule.REQUESTS_ARE_BOUNDED, Rule.NO_CLAIM_IS_LEFT),
        claiming,
        "places_taken",
        _has_taken_no_place,
    ),
    Mutation(
        "the index keeps the owners of removed objects",
        (Rule.THE_STORE_IS_BOUNDED,),
        Store,
        "_forget",
        _keeps_unconcerned_pods,
    ),
    Mutation(
        "a spare that was claimed Warm gets no order",
        (Rule.AN_ADOPTED_SPARE_KNOWS_ITS_JOB,),
        adopting,
        "unadopted",
        lambda _: [],
        warm=True,
    ),
    Mutation(
        "a spare that cannot be adopted stays",
        (Rule.AN_ADOPTED_SPARE_KNOWS_ITS_JOB,),
        adopting,
        "ADOPT_WITHIN_S",
        float("inf"),
        warm=True,
    ),
)


@contextmanager
def broken(mutation: Mutation) -> Iterator[None]:
    with mock.patch.object(mutation.where, mutation.name, mutation.instead):
        yield

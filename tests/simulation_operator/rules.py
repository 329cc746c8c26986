"""The rules that the simulation checks, and the error that names the broken ones."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Rule(StrEnum):
    """The invariants. NO_ERROR: the code raises no error."""

    PODS_ARE_CALLED_WITH_THEIR_KEY = "pods are called with their key"
    ONLY_THE_LEADER_WRITES = "only the leader writes"
    NO_POD_THAT_TRAINS_IS_DELETED = "no pod that trains is deleted"
    MALFORMED_OBJECTS_ARE_READ = "malformed objects are read"
    A_SPARE_HAS_ONE_CLAIMANT = "a spare has one claimant"
    A_JOB_CLAIMS_WHAT_IT_LACKS = "a job claims what it lacks"
    A_PLACE_IS_TAKEN_ONCE = "a place is taken once"
    A_PLACE_IS_TAKEN_AFTER_ITS_END = "a place is taken after its end"
    A_POOL_IS_FULL = "a pool is full"
    A_POOL_REPORTS_ITS_SPARES = "a pool reports its spares"
    A_POOL_HAS_ONE_TEMPLATE = "a pool has one template"
    NO_CLAIM_IS_LEFT = "no claim is left"
    AN_ADOPTED_SPARE_KNOWS_ITS_JOB = "an adopted spare knows its job"
    NOTHING_OF_A_DELETED_JOB_IS_LEFT = "nothing of a deleted job is left"
    ONE_REPLICA_LEADS = "one replica leads"
    NOTHING_IS_WRITTEN_WHEN_STABLE = "nothing is written when stable"
    WRITES_ARE_BOUNDED = "writes are bounded"
    STATUS_IS_TRUE = "status is true"
    A_JOB_HAS_ITS_PODS = "a job has its pods"
    PODS_FOLLOW_THE_SPEC = "pods follow the spec"
    ONLY_OBJECTS_OF_JOBS_ARE_DELETED = "only objects of jobs are deleted"
    A_SUCCEEDED_JOB_TRAINS_NO_MORE = "a succeeded job trains no more"
    A_JOB_TRAINS = "a job trains"
    THE_COORDINATOR_HAS_THE_LABEL = "the coordinator has the label"
    RECORDED_FAULTS_HAVE_EVENTS = "recorded faults have events"
    RECORDED_FAULTS_HAVE_OBJECTS = "recorded faults have objects"
    TASKS_LIVE = "tasks live"
    THE_STORE_IS_TRUE = "the store is true"
    THE_STORE_IS_BOUNDED = "the store is bounded"
    EACH_OWNER_HAS_A_WORKER = "each owner has a worker"
    CREATIONS_ARE_RESOLVED = "creations are resolved"
    REQUESTS_ARE_BOUNDED = "requests are bounded"
    NO_ERROR = "no error"


class Wrong(NamedTuple):
    rule: Rule
    text: str


class Violation(AssertionError):
    """Some rules are broken."""

    def __init__(self, rules: frozenset[Rule], text: str) -> None:
        super().__init__(text)
        self.rules = rules

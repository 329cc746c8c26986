"""`spares`: the spares of jobs and pools, with the pods that wait. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from understudy_cli.facts import Condition, Job, Pod, Pool
from understudy_cli.views.phrases import NONE, age
from understudy_protocol import pod as names


@dataclass(frozen=True)
class SpareRow:
    """owner: the job or the pool. available: spares that could take ranks now; NONE if it is not known."""

    namespace: str
    owner: str
    kind: str
    ready: str
    claimed: int
    available: str
    pool: str
    note: str


@dataclass(frozen=True)
class SparePod:
    namespace: str
    owner: str
    name: str
    node: str
    state: str
    claimed_by: str
    age: str


@dataclass(frozen=True)
class SpareTables:
    owners: tuple[SpareRow, ...]
    pods: tuple[SparePod, ...]


def spares(jobs: Iterable[Job], pools: Iterable[Pool], pods: Iterable[Pod], now: float) -> SpareTables:
    """Jobs without spares and without a pool are left out."""
    rows = [_of_job(job) for job in jobs if job.spares_desired or job.spares_ready or job.pool]
    rows += [_of_pool(pool) for pool in pools]
    waiting = [pod for pod in pods if pod.role == names.ROLE_SPARE or pod.pool]
    return SpareTables(
        owners=tuple(sorted(rows, key=lambda row: (row.namespace, row.kind, row.owner))),
        pods=tuple(
            SparePod(
                pod.namespace,
                pod.pool or pod.job,
                pod.name,
                pod.node or NONE,
                pod.state,
                pod.claimed_by or NONE,
                age(pod.created_at, now),
            )
            for pod in sorted(waiting, key=lambda pod: (pod.namespace, pod.pool or pod.job, pod.name))
            if not pod.has_ended
        ),
    )


def _of_job(job: Job) -> SpareRow:
    return SpareRow(
        namespace=job.namespace,
        owner=job.name,
        kind="job",
        ready=f"{job.spares_ready}/{job.spares_desired}",
        claimed=job.spares_claimed,
        available=str(job.spares_ready),
        pool=job.pool or NONE,
        note=_note(job.conditions, ("SparesReady", "PoolAvailable")),
    )


def _of_pool(pool: Pool) -> SpareRow:
    return SpareRow(
        namespace=pool.namespace,
        owner=pool.name,
        kind="pool",
        ready=f"{pool.ready}/{pool.desired}",
        claimed=pool.claimed,
        available=str(pool.available),
        pool=NONE,
        note=_note(pool.conditions, ("Ready",)),
    )


def _note(conditions: Sequence[Condition], kinds: Sequence[str]) -> str:
    """The messages of those conditions that are False."""
    found = [x.message for x in conditions if x.type in kinds and x.status == "False" and x.reason != "NoSpareNeeded"]
    return " ".join(filter(None, found))

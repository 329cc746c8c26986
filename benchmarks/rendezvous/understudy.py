"""Sessions of ours, and of the bare server: the faults of a job, and when all members have seen the outcome."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.child import Child, Unfinished
from benchmarks.machine import Usage
from benchmarks.rendezvous.network import nodes
from benchmarks.rendezvous.plan import Case, Outcome
from benchmarks.rendezvous.processes import START_S, Job, cpu_of, running

FIRST, NEXT = 0, 1  # rounds
IDLE_S = 30.0
IDLE_PEERS = 64  # members of the job in which a single sidecar is idle
STANDBYS = 5
POLL_S = 0.01
_SUSPECT = re.compile(r"^([0-9.]+) .* went silent", re.MULTILINE)


def rounds(size: int, limit_s: float, profile: Path | None, *, bare: bool = False) -> Iterator[Outcome]:
    """All members call at once. Then the last of them is lost, and a spare takes its rank."""
    with running(size, spares=1, bare=bare, profile=profile) as job:
        yield Case.FIRST_ROUND, first_round(job, limit_s)
        yield Case.NEXT_ROUND, next_round(job, limit_s)


def first_round(job: Job, limit_s: float) -> dict[str, float]:
    used = cpu_of(job.coordinator)
    start = time.monotonic()
    for crowd in job.crowds:
        crowd.send("release")
    for crowd in job.crowds:
        crowd.answer(limit_s)
    at, joined_at = _assigned(job, FIRST, job.shares(), start, limit_s)
    job.settle(FIRST, limit_s)
    return {
        "seconds": at - start,
        "connect_s": joined_at - start,
        "assign_s": at - joined_at,
        "coordinator_cpu_s": cpu_of(job.coordinator) - used,
    }


def next_round(job: Job, limit_s: float) -> dict[str, float]:
    used = cpu_of(job.coordinator)
    lost = job.actives - 1
    crowd = job.crowd_of(lost)
    start = crowd.ask("lose", limit_s, name=f"active-{lost}")["at"]
    shares = [share - (other is crowd) for other, share in zip(job.crowds, job.shares(), strict=True)]
    shares[0] += 1  # the first crowd has the spare
    at, _ = _assigned(job, NEXT, shares, start, limit_s)
    job.settle(NEXT, limit_s)
    return {"seconds": at - start, "coordinator_cpu_s": cpu_of(job.coordinator) - used}


def _assigned(job: Job, number: int, shares: list[int], start: float, limit_s: float) -> tuple[float, float]:
    """When the last member got its place in this round, and when the last one joined."""
    for crowd, share in zip(job.crowds, shares, strict=True):
        crowd.send("assigned_to", number=number, members=share)
    answers = [crowd.answer(start + limit_s - time.monotonic()) for crowd in job.crowds]
    newest = max(x["newest"] for x in answers)
    if newest != number:
        raise Unfinished(f"round {newest} followed on round {number}: members were lost", time.monotonic() - start)
    return max(x["at"] for x in answers), max(x["joined_at"] for x in answers)


def failover(size: int, limit_s: float, profile: Path | None) -> Iterator[Outcome]:
    """SIGKILL of the coordinator: until its successor welcomes the first member, and the last. The round continues."""
    with nodes(STANDBYS) as standbys, running(size, pods=standbys) as job:
        first_round(job, limit_s)
        assert job.operator is not None
        job.operator.ask("standbys_known", START_S, standbys=STANDBYS)
        for crowd in job.crowds:
            crowd.ask("expect_welcome", START_S)
        start = time.monotonic()
        job.coordinator.kill()
        for crowd, share in zip(job.crowds, job.shares(), strict=True):
            crowd.send("welcomed", members=share)
        answers = [crowd.answer(start + limit_s - time.monotonic()) for crowd in job.crowds]
        last = max(x["last"] for x in answers)
        if any(x["newest"] != FIRST for x in answers):
            raise Unfinished("the new coordinator formed a new round: not all members came back in time", last - start)
        yield Case.FAILOVER, {"seconds": last - start, "first_welcome_s": min(x["first"] for x in answers) - start}


def silent_node(size: int, limit_s: float, profile: Path | None) -> Iterator[Outcome]:
    """A member's node loses its network: until the coordinator suspects the member."""
    with nodes(1) as (node,), running(size, far=node) as job:
        first_round(job, limit_s)
        start = time.time()  # the coordinator's log has wall-clock times
        node.pull_the_cable()
        yield Case.SILENT_NODE, {"seconds": _suspected_at(job.coordinator, start, limit_s) - start}


def _suspected_at(coordinator: Child, start: float, limit_s: float) -> float:
    while (found := _SUSPECT.search(coordinator.log.read_text())) is None:
        if time.time() > start + limit_s:
            raise Unfinished(f"no member was suspected within {limit_s:.0f} s", limit_s)
        time.sleep(POLL_S)
    return float(found[1])


def wait_idle(size: int, limit_s: float, profile: Path | None) -> Iterator[Outcome]:
    """Nothing happens. Size 1 measures one whole sidecar, a spare of a running job; other sizes the coordinator."""
    alone = size == 1
    with nodes(1 if alone else 0) as pods, running(IDLE_PEERS if alone else size, pods=pods, profile=profile) as job:
        first_round(job, limit_s)
        resting = job.pods[0] if alone else job.coordinator
        before = Usage.of(resting.pid)
        time.sleep(IDLE_S)
        after = Usage.of(resting.pid)
        per_minute = (after.cpu_s - before.cpu_s) * 60 / IDLE_S
        yield Case.REST, {"rss_mb": after.rss_mb, "cpu_s_per_minute": per_minute}

"""Follows the objects of a cluster: the live views of `get -w`, a frame whenever something has changed; and the waits
of `drain` and `drill`.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from understudy_cli import render
from understudy_cli.command_errors import NotFound, NotPossible
from understudy_cli.facts import Job, Pod, Recovery
from understudy_cli.following import Followed
from understudy_cli.namespace_objects import PLURALS, PODS, RECOVERIES
from understudy_cli.printing import Frame
from understudy_cli.reading import recoveries_of
from understudy_cli.views import drains, drills, jobs

#: A live view is drawn at most this often, and at least as often as an age changes.
FRAME_S, IDLE_S = 0.1, 1.0
#: Lines of a tree beside those of its pods: the headline, five faults of two lines, and two notes.
OTHER_LINES = 16


def job_frames(followed: Followed, *, wide: bool, all_namespaces: bool) -> Iterator[Frame]:
    for _ in ticks(followed):
        found = [job for plural in PLURALS.values() for job in followed.objects(plural)]
        yield with_warning(followed, partial(_draw_jobs, found, wide=wide, all_namespaces=all_namespaces))


def _draw_jobs(found: Sequence[Job], now: float, *, wide: bool, all_namespaces: bool) -> RenderableType:
    return render.jobs(jobs.job_rows(found, now), wide=wide, all_namespaces=all_namespaces)


def tree_frames(followed: Followed, job: Job, *, wide: bool) -> Iterator[Frame]:
    """Until the job is deleted. Raises NotFound then."""
    for _ in ticks(followed):
        newest = _followed_job(followed, job)
        recoveries = recoveries_of(newest, followed.objects(RECOVERIES))
        yield with_warning(followed, partial(draw_tree, newest, followed.objects(PODS), recoveries, wide=wide))


def wait_for_drain(
    followed: Followed,
    job: Job,
    drain: drains.DrainPlan,
    known: Collection[float | None],
    limit_s: float,
    program: str,
) -> tuple[drains.DrainRow, ...]:
    """The result, once spares train in place of the drained pods. Raises NotPossible after that time."""
    until = time.monotonic() + limit_s
    rows, newest = drains.requested_rows(drain), job
    while time.monotonic() < until:
        followed.take(min(IDLE_S, max(0.0, until - time.monotonic())))
        if not followed.is_complete:
            continue
        newest = _followed_job(followed, job)
        pods, objects = followed.objects(PODS), followed.objects(RECOVERIES)
        rows = drains.drain_rows(drain, pods, recoveries_of(newest, objects), known)
        if all(row.state is drains.DrainState.DONE for row in rows):
            return rows
        if newest.has_ended:
            raise NotPossible(f"job {job.name} has ended before the drain was done")
    raise NotPossible(drains.late(newest, rows, limit_s, program))


def wait_for_drill(
    followed: Followed,
    job: Job,
    request: str,
    before: Sequence[Pod],
    known: Collection[float | None],
    limit_s: float,
    program: str,
) -> drills.DrillResult:
    """The result, once the job has recovered. before: its pods at the request. Raises NotPossible after that time."""
    until = time.monotonic() + limit_s
    drill = None
    while time.monotonic() < until:
        followed.take(min(IDLE_S, max(0.0, until - time.monotonic())))
        if not followed.is_complete:
            continue
        newest = _followed_job(followed, job)
        drill = newest.drill if newest.drill is not None and newest.drill.request == request else None
        if drill is not None and drill.refusal:
            raise NotPossible(f"nothing was broken: {drill.refusal}")
        recoveries = recoveries_of(newest, followed.objects(RECOVERIES))
        if drill is not None and (found := drills.result(newest, drill, before, recoveries, known)) is not None:
            return found
        if newest.has_ended:
            raise NotPossible(f"job {job.name} has ended before it recovered: {program} why {job.name}")
    raise NotPossible(drills.late(job, drill, limit_s, program))


def _followed_job(followed: Followed, job: Job) -> Job:
    """Raises NotFound if it was deleted, also if another job has its name now."""
    found: tuple[Job, ...] = followed.objects(PLURALS[job.kind])
    newest = next((each for each in found if each.uid == job.uid), None)
    if newest is None:
        raise NotFound(f"job {job.name} was deleted")
    return newest


def draw_tree(
    job: Job, pods: Sequence[Pod], recoveries: Sequence[Recovery], now: float, *, wide: bool
) -> RenderableType:
    limit = None if wide else room_for_pods()
    return render.tree(jobs.job_tree(job, pods, recoveries, now, limit), wide=wide)


def room_for_pods() -> int:
    """As many pods as leave the faults and the notes of a job on the screen."""
    console = render.console()
    return max(5, min(jobs.PODS, console.height - OTHER_LINES)) if console.is_terminal else jobs.PODS


def ticks(followed: Followed) -> Iterator[None]:
    """Whenever something has changed, and at least once a second, once everything was listed."""
    while True:
        followed.take(IDLE_S)
        if followed.is_complete:
            yield None
            time.sleep(FRAME_S)


def with_warning(followed: Followed, frame: Frame) -> Frame:
    if not followed.disconnected:
        return frame
    why = next(iter(followed.disconnected.values()))
    return lambda now: Group(frame(now), Text(f"! not up to date: {why}", style="red"))

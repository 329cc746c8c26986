"""The output of each view at 80 and 120 columns, as a terminal without color shows it.

`python -m tests.unit.cli.golden` rewrites the files in golden/; read the diff.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console, RenderableType

from tests.unit.cli import samples
from understudy_cli import render
from understudy_cli.facts import DrillRecord
from understudy_cli.log_lines import grouped, newest_dumps
from understudy_cli.reading import read_event, read_job, read_node, read_pod, read_pool, read_recovery, recoveries_of
from understudy_cli.views import causes, checks, drains, drills, goodput, jobs, nodes, spares, timeline

FOLDER = Path(__file__).with_name("golden")
WIDTHS = (80, 120)


def _job() -> RenderableType:
    job = read_job(samples.job())
    pods = map(read_pod, samples.pods())
    return render.tree(jobs.job_tree(job, pods, recoveries_of(job, ()), samples.NOW), wide=False)


def _jobs(*, all_namespaces: bool) -> RenderableType:
    waiting = samples.job(
        "a-job-with-a-long-name",
        phase="Pending",
        members={"desired": 128, "active": 0, "ready": 0},
        lastRecovery=None,
        recoveries=[],
        recoveriesByStrategy={},
        progress=None,
    )
    rows = jobs.job_rows([read_job(samples.job()), read_job(waiting)], samples.NOW)
    return render.jobs(rows, wide=False, all_namespaces=all_namespaces)


def _why() -> RenderableType:
    job = read_job(samples.job())
    return render.why(causes.why(job, recoveries_of(job, ()), samples.NOW, 2, "understudy"))


def _why_with_details() -> RenderableType:
    job = read_job(samples.job())
    return render.why(
        causes.why(job, recoveries_of(job, [read_recovery(samples.recovery_object())]), samples.NOW, 1, "understudy")
    )


def _timeline() -> RenderableType:
    job = read_job(samples.job())
    return render.timeline(timeline.timeline(job, recoveries_of(job, ()), map(read_event, samples.events())))


def _goodput() -> RenderableType:
    return render.goodput(goodput.job_goodput(read_job(samples.job()), samples.NOW))


def _goodput_of_jobs() -> RenderableType:
    without_steps = samples.goodput(part="WithoutSteps", seconds={"starting": 60.0}, lost=[])
    counted = samples.goodput(repeatedUnknown=True)
    found = [
        samples.job(),
        samples.job("no-steps", goodput=without_steps),
        samples.job("no-launcher", goodput=None),
        samples.job("counted-steps", goodput=counted),
    ]
    return render.goodputs(goodput.goodput_rows(map(read_job, found), samples.NOW), all_namespaces=False)


def _spares() -> RenderableType:
    found = spares.spares(
        [read_job(samples.job())], [read_pool(samples.pool())], map(read_pod, samples.pods()), samples.NOW
    )
    return render.spares(found, all_namespaces=False)


def _nodes() -> RenderableType:
    found = map(read_node, samples.nodes())
    rows = nodes.node_rows([read_job(samples.job())], map(read_pod, samples.pods()), found, samples.NOW)
    return render.nodes(rows)


def _drain() -> RenderableType:
    pods = [*map(read_pod, samples.pods()), read_pod(samples.pod("llm-spare-b", "node-e"))]
    planned = drains.plan_drain(read_job(samples.job()), pods, "llm-workers-0-1")
    swapped = read_job(samples.job(recoveries=[samples.drained()])).recoveries
    waiting = drains.requested_rows(drains.plan_drain(read_job(samples.job()), pods, "llm-spare-x7k2p"))
    return render.drain([*waiting, *drains.drain_rows(planned, pods, swapped, set())])


def _drill() -> RenderableType:
    job = read_job(samples.drillable(recoveries=[samples.drilled()]))
    drill = DrillRecord("Pod 2026-11-20T11:59:30Z", samples.NOW - 30, ("llm-workers-0-1",), "node-b", "")
    found = drills.result(job, drill, tuple(map(read_pod, samples.pods())), job.recoveries, set())
    assert found is not None
    return render.drill(found)


def _doctor() -> RenderableType:
    return render.diagnosis(checks.findings(samples.installation(), samples.NOW))


def _stacks() -> RenderableType:
    return render.stacks(grouped(newest_dumps(samples.hang_log()).values()))


VIEWS: dict[str, Callable[[], RenderableType]] = {
    "job": _job,
    "jobs": partial(_jobs, all_namespaces=False),
    "jobs-of-all-namespaces": partial(_jobs, all_namespaces=True),
    "why": _why,
    "why-with-details": _why_with_details,
    "timeline": _timeline,
    "goodput": _goodput,
    "goodput-of-jobs": _goodput_of_jobs,
    "spares": _spares,
    "nodes": _nodes,
    "drain": _drain,
    "drill": _drill,
    "doctor": _doctor,
    "stacks": _stacks,
}


def shown(view: str, width: int) -> str:
    return render.plain(Console(width=width, highlight=False, markup=False, color_system=None), VIEWS[view]())


def golden(view: str, width: int) -> Path:
    return FOLDER / f"{view}-{width}.txt"


def main() -> None:
    for view in VIEWS:
        for width in WIDTHS:
            golden(view, width).write_text(shown(view, width))


if __name__ == "__main__":
    main()

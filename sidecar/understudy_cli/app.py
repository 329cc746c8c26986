"""The verbs of the command line, for a cluster. `local.py` adds those of local mode.

Each verb reads objects, calls a view, and prints it. Errors for users are CommandFailed; `entry` prints them.
"""

import os
import sys
import time
from datetime import UTC, datetime
from importlib import metadata, util
from pathlib import Path
from typing import Annotated

import typer

from understudy_cli import render
from understudy_cli.api import FORBIDDEN, Api
from understudy_cli.command_errors import CommandFailed, ExitCode, NoAnswer, NotFound, NotPossible, WrongCall
from understudy_cli.credentials import find_access
from understudy_cli.diagnosis import examine
from understudy_cli.facts import INJECTED_JOB, Event, Job, Pod, Recovery
from understudy_cli.live import job_frames, tree_frames, wait_for_drain, wait_for_drill
from understudy_cli.log_lines import Wanted
from understudy_cli.namespace_objects import PODS, Cluster
from understudy_cli.pod_logs import MOST_PODS, FollowedLogs, PodLogLine, lines_around, pods_to_read, read_lines
from understudy_cli.printing import (
    DEFAULT_PORT,
    DEFAULT_TAIL,
    LOOPBACK,
    Follow,
    Format,
    Hosts,
    Last,
    Listen,
    Port,
    Rank,
    Round,
    Tail,
    Watch,
    draw,
    no_lines,
    remark,
    serve_page,
    show,
    show_stacks,
)
from understudy_cli.reading import read_job, read_node, read_pod, read_pool
from understudy_cli.render import OutputFormat
from understudy_cli.views import causes, checks, drains, drills, goodput, jobs, nodes, spares, timeline
from understudy_cli.views.check_result import Level
from understudy_cli.views.drill_schedule import schedule_manifests
from understudy_cli.views.suspects import Logs, Source
from understudy_protocol import enums
from understudy_protocol import pod as names

app = typer.Typer(
    name="understudy",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Shows training jobs, their faults and their recoveries, in the cluster of the kubeconfig.",
    epilog="Exit codes: 0 done, 1 problem found, 2 wrong command line, 3 not found, 4 no answer, 130 Ctrl-C.",
)

Namespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace. Default: that of the context.")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")]
Context = Annotated[
    str, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig. Default: the current one.")
]
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", metavar="PATH", help="Path of a kubeconfig. Default: KUBECONFIG, ~/.kube/config.")
]


def _complete_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """The jobs of the namespace, for the shell: none if the cluster cannot be read."""
    kubeconfig, context, namespace = (
        str(ctx.params.get(name) or "") for name in ("kubeconfig", "context", "namespace")
    )
    try:
        found = [read_job(raw).name for raw in connect(kubeconfig, context, namespace).jobs()]
    except CommandFailed:
        return []
    return sorted(name for name in found if name.startswith(incomplete))


JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="A TrainingJob, or an InjectedJob such as jobset.llm.", autocompletion=_complete_jobs
    ),
]


def program() -> str:
    """The words before a verb, as the user typed them."""
    return "kubectl understudy" if Path(sys.argv[0]).name.startswith("kubectl-") else "understudy"


def version() -> str:
    """Empty if the program runs from its sources."""
    try:
        return metadata.version("understudy-training")
    except metadata.PackageNotFoundError:
        return ""


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"understudy {version() or '(run from its sources, not installed)'}")
        raise typer.Exit()


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


def connect(kubeconfig: str, context: str, namespace: str, *, all_namespaces: bool = False) -> Cluster:
    access = find_access(kubeconfig, context, os.environ)
    return Cluster(Api(access), "" if all_namespaces else namespace or access.namespace)


# get ------------------------------------------------------------------------------------------------------------------


@app.command("get", epilog="Example: understudy get llm -w")
def get(
    job: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]", help="One job as a tree of its pods. Default: all jobs.", autocompletion=_complete_jobs
        ),
    ] = "",
    watch: Watch = False,
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show jobs, or one job with its pods and faults.

    A job is shown as a tree: its pods with their ranks and nodes, spares, the coordinator, and the newest faults.
    """
    if watch and output.is_data:
        raise WrongCall(f"-w with -o {output.value}: the live view has no {output.value}; leave one of them out")
    if job and all_namespaces:
        raise WrongCall("-A with a JOB: choose the namespace of the job with -n")
    cluster = connect(kubeconfig, context, namespace, all_namespaces=all_namespaces)
    wide = output is OutputFormat.WIDE
    if not job:
        if watch:
            draw(job_frames(cluster.follow_jobs(), wide=wide, all_namespaces=all_namespaces))
        else:
            show_jobs(cluster, output, all_namespaces=all_namespaces)
        return
    found = cluster.job(job)
    if watch:
        draw(tree_frames(cluster.follow(found), found, wide=wide))
        return
    pods = [read_pod(raw) for raw in cluster.pods_of(found)]
    limit = None if output.is_data or wide else jobs.PODS
    shown = jobs.job_tree(found, pods, cluster.recoveries_of(found), time.time(), limit)
    show(shown, output, lambda: render.tree(shown, wide=wide))


def show_jobs(cluster: Cluster, output: OutputFormat, *, all_namespaces: bool) -> None:
    rows = jobs.job_rows(map(read_job, cluster.jobs()), time.time())
    if not rows and not output.is_data:
        _remark_no_jobs(cluster)
        return
    wide = output is OutputFormat.WIDE
    show({"jobs": rows}, output, lambda: render.jobs(rows, wide=wide, all_namespaces=all_namespaces))


def _remark_no_jobs(cluster: Cluster) -> None:
    remark(f"there are no jobs in {f'namespace {cluster.namespace}' if cluster.namespace else 'the cluster'}")


# why, timeline --------------------------------------------------------------------------------------------------------


@app.command("why", epilog="Example: understudy why llm --last 3")
def why(
    job: JobName,
    last: Last = 1,
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Explain the newest fault of a job.

    Shows the first failure, the recovery, and the next steps. If the job does not train, it shows the reason.
    """
    cluster = connect(kubeconfig, context, namespace)
    found = cluster.job(job)
    recoveries = cluster.recoveries_of(found)
    shown = causes.why(
        found, recoveries, time.time(), last, program(), lambda fault: _logs_around(cluster, found, fault)
    )
    show(shown, output, lambda: render.why(shown))


@app.command("timeline", epilog="Example: understudy timeline llm -o json")
def show_timeline(
    job: JobName,
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """List the history of a job.

    Faults, recoveries, conditions and events, in the order of time.
    """
    cluster = connect(kubeconfig, context, namespace)
    found = cluster.job(job)
    entries = timeline.timeline(found, cluster.recoveries_of(found), _events_of(cluster, found))
    show({"entries": entries}, output, lambda: render.timeline(entries))


def _events_of(cluster: Cluster, job: Job) -> tuple[Event, ...]:
    """Empty if the account may not read them."""
    try:
        return cluster.events_of(job)
    except NoAnswer as error:
        if error.status != FORBIDDEN:
            raise
        remark(f"the events of the job are not readable, so the entries are those of status: {error}")
        return ()


def _logs_around(cluster: Cluster, job: Job, fault: Recovery) -> Logs:
    """Empty if the account may not read them, or the job has too many pods."""
    try:
        pods = [read_pod(raw) for raw in cluster.pods_of(job)]
        if len(pods) > MOST_PODS:
            return {}
        by_pod = lines_around(cluster.api, pods, fault)
    except NoAnswer as error:
        remark(f"the logs of the pods are not readable, so the first failure is that of status: {error}")
        return {}
    return {Source(pod.name, pod.node): by_pod[pod.name] for pod in pods if pod.name in by_pod}


# goodput --------------------------------------------------------------------------------------------------------------


@app.command("goodput", epilog="Example: understudy goodput llm")
def show_goodput(
    job: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]", help="The parts of the time of one job. Default: all jobs.", autocompletion=_complete_jobs
        ),
    ] = "",
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show what the time of jobs went to.

    For one job: each part of its time, and what faults have cost, by cause and by node.
    """
    if job and all_namespaces:
        raise WrongCall("-A with a JOB: choose the namespace of the job with -n")
    cluster = connect(kubeconfig, context, namespace, all_namespaces=all_namespaces)
    if job:
        shown = goodput.job_goodput(cluster.job(job), time.time())
        show(shown, output, lambda: render.goodput(shown))
        return
    rows = goodput.goodput_rows(map(read_job, cluster.jobs()), time.time())
    if not rows and not output.is_data:
        _remark_no_jobs(cluster)
        return
    show({"jobs": rows}, output, lambda: render.goodputs(rows, all_namespaces=all_namespaces))


# logs, stacks ---------------------------------------------------------------------------------------------------------


@app.command("logs", epilog="Example: understudy logs llm --rank 3 --round 5")
def logs(
    job: JobName,
    rank: Rank = None,
    round_number: Round = None,
    follow: Follow = False,
    tail: Tail = DEFAULT_TAIL,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Print logs of ranks and rounds across pods.

    The lines of all pods are in the order of time.
    """
    cluster = connect(kubeconfig, context, namespace)
    found, wanted = cluster.job(job), Wanted(rank, round_number)
    pods = pods_to_read(_pods_with_logs(cluster, found), wanted)
    if follow:
        name_pod = rank is None
        followed = FollowedLogs(cluster.api, cluster.follow_pods(found), PODS, wanted, tail)
        followed.run(lambda line: _print_line(line, name_pod=name_pod))
        return
    lines, has_prefixes = read_lines(cluster.api, pods, wanted, tail)
    for line in lines:
        _print_line(line, name_pod=rank is None and len(pods) > 1)
    if not lines and tail:
        raise NotFound(no_lines(wanted, has_prefixes=has_prefixes))


def _pods_with_logs(cluster: Cluster, job: Job) -> list[Pod]:
    pods = [read_pod(raw) for raw in cluster.pods_of(job)]
    if not pods:
        raise NotFound(f"job {job.name} has no pods, so there are no logs: {program()} timeline {job.name}")
    return pods


def _print_line(line: PodLogLine, *, name_pod: bool) -> None:
    sys.stdout.write(f"{line.pod} | {line.text}\n" if name_pod else f"{line.text}\n")
    sys.stdout.flush()


@app.command("stacks", epilog="Example: understudy stacks llm --rank 3")
def stacks(
    job: JobName,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show the Python stacks of the newest hang.

    Ranks with equal stacks are together. Workers write stacks if faults.hang is set and no step was made in time.
    """
    cluster = connect(kubeconfig, context, namespace)
    found = cluster.job(job)
    pods = pods_to_read(_pods_with_logs(cluster, found), Wanted(rank))
    lines, _ = read_lines(cluster.api, pods, Wanted(), -1)
    by_pod: dict[str, list[str]] = {}
    for line in lines:
        by_pod.setdefault(line.pod, []).append(line.text)
    show_stacks(by_pod, rank, output, "faults.hang is set")


# spares, nodes, doctor ------------------------------------------------------------------------------------------------


@app.command("spares", epilog="Example: understudy spares -A")
def show_spares(
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """List spares of jobs and pools."""
    cluster = connect(kubeconfig, context, namespace, all_namespaces=all_namespaces)
    shown = spares.spares(
        map(read_job, cluster.jobs()), map(read_pool, cluster.pools()), map(read_pod, cluster.pods()), time.time()
    )
    if not shown.owners and not shown.pods and not output.is_data:
        remark("no job and no pool has spares")
        return
    show(shown, output, lambda: render.spares(shown, all_namespaces=all_namespaces))


@app.command("nodes", epilog="Example: understudy nodes -A")
def show_nodes(
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """List nodes and the findings against them."""
    cluster = connect(kubeconfig, context, namespace, all_namespaces=all_namespaces)
    found = cluster.nodes()
    known = None if found is None else map(read_node, found)
    rows = nodes.node_rows(map(read_job, cluster.jobs()), map(read_pod, cluster.pods()), known, time.time())
    show({"nodes": rows}, output, lambda: render.nodes(rows))
    if found is None and not output.is_data:
        remark("the state of the nodes is not known: this account may not list nodes")


@app.command("doctor", epilog="Example: understudy doctor -n team-a")
def doctor(
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Check the installation.

    Each problem has its fix. The exit code is 1 if there is an error.
    """
    cluster = connect(kubeconfig, context, namespace)
    found = checks.findings(examine(cluster.api, cluster.namespace, version()), time.time())
    show({"findings": found}, output, lambda: render.diagnosis(found))
    if any(finding.level is Level.ERROR for finding in found):
        raise typer.Exit(ExitCode.PROBLEM_FOUND)


# drain ----------------------------------------------------------------------------------------------------------------


@app.command("drain", epilog="Example: understudy drain llm llm-workers-0-1 --wait")
def drain(
    job: JobName,
    target: Annotated[str, typer.Argument(metavar="POD|NODE", help="A pod of the job, or a node: all pods there.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason, for events and the Recovery.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until spares train, and show what the swap cost.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="For --wait.")] = 600.0,
    cancel: Annotated[bool, typer.Option("--cancel", help="Withdraw the request, if the swap has not begun.")] = False,
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Move the ranks of a pod to a spare.

    All workers save, and a spare takes over. Then the pod ends. Needs the right to patch pods.
    """
    if cancel and (wait or reason):
        raise WrongCall("--cancel with --wait or --reason: there is nothing to wait for; leave the others out")
    cluster = connect(kubeconfig, context, namespace)
    found = cluster.job(job)
    pods = [read_pod(raw) for raw in cluster.pods_of(found)]
    if cancel:
        for pod in drains.chosen_pods(found, pods, target):
            cluster.annotate(pod, {names.ANNOTATION_DRAIN: None})
        remark("withdrawn: pods that still have their ranks keep them")
        return
    planned = drains.plan_drain(found, pods, target)
    known = {recovery.detected_at for recovery in cluster.recoveries_of(found)}
    for pod in planned.pods:
        cluster.annotate(pod, {names.ANNOTATION_DRAIN: reason or "requested with understudy drain"})
    if planned.remark and not output.is_data:
        remark(planned.remark)
    rows = drains.requested_rows(planned)
    if wait:
        rows = wait_for_drain(cluster.follow(found), found, planned, known, timeout, program())
    show({"pods": rows}, output, lambda: render.drain(rows))


# drill ----------------------------------------------------------------------------------------------------------------


@app.command("drill", epilog="Example: understudy drill llm --fault process")
def drill(
    job: JobName,
    fault: Annotated[
        enums.Drill,
        typer.Option("--fault", case_sensitive=False, help="process, pod, coordinator, hang or node."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Break the job without a question.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="For the recovery.")] = 600.0,
    schedule: Annotated[
        str, typer.Option("--schedule", metavar="CRON", help="Print a CronJob that does it regularly; break nothing.")
    ] = "",
    image: Annotated[str, typer.Option("--image", metavar="IMAGE", help="For --schedule: one with understudy.")] = "",
    output: Format = OutputFormat.TABLE,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Break a job on purpose, and show what a real fault would cost.

    Only if spec.drills is Allowed. Needs the right to patch the job, or the pods of an injected job. A drill never
    counts against a node or a pod.
    """
    cluster = connect(kubeconfig, context, namespace)
    found = cluster.job(job)
    drills.check_drill(found)
    if schedule:
        sys.stdout.write(render.manifests(schedule_manifests(found, fault, schedule, image)))
        return
    if not yes and not sys.stdin.isatty():
        raise WrongCall(f"drill {job} without --yes: there is no terminal to ask whether the job may be broken")
    if not yes and not _is_confirmed(f"This {drills.BREAKS[fault]} of job {job}. Continue?"):
        raise NotPossible("nothing was broken")
    pods = [read_pod(raw) for raw in cluster.pods_of(found)]
    known = {recovery.detected_at for recovery in cluster.recoveries_of(found)}
    request = f"{fault.value} {datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}"
    if found.kind == INJECTED_JOB:
        cluster.annotate(drills.pod_to_annotate(found, pods), {names.ANNOTATION_DRILL: request})
    else:
        cluster.annotate_job(found, {names.ANNOTATION_DRILL: request})
    result = wait_for_drill(cluster.follow(found), found, request, pods, known, timeout, program())
    if result.remark and not output.is_data:
        remark(result.remark)
    show(result, output, lambda: render.drill(result))


def _is_confirmed(question: str) -> bool:
    """The question is on stderr, because a program may read stdout. The end of stdin is no confirmation."""
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# dashboard ------------------------------------------------------------------------------------------------------------


@app.command("dashboard", epilog="Example: understudy dashboard -A")
def dashboard(
    port: Port = DEFAULT_PORT,
    listen: Listen = LOOPBACK,
    host: Hosts = None,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Serve a web page about all jobs, until Ctrl-C.

    The page shows jobs, their pods and faults, spares and nodes, and follows each change. It has no login.
    """
    from understudy_cli.dashboard.fleets import cluster_fleets

    cluster = connect(kubeconfig, context, namespace, all_namespaces=all_namespaces)
    serve_page(cluster_fleets(cluster.api, [cluster.namespace]), listen, port, host)


if util.find_spec("understudy_local") is not None:  # the plugin's file does not contain local mode
    from understudy_cli.local import local

    app.add_typer(local, name="local")


def run() -> None:
    """Run the command line. Raises SystemExit, and CommandFailed for an error of a user."""
    app()

"""Causes the faults that draw.py draws, and undoes them."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from tests.cluster import Cluster, CommandFailed
from tests.cluster.commands import run
from tests.e2e.acts import worker_pids
from tests.e2e.test_pool import kill_leader
from tests.soak.draw import Draw, Kind, Pod
from tests.soak.jobs import SoakRl, SoakTraining, clock_library, fill, host_name, shift_clock

#: A slow and lossy network: both directions lose packets, and the node sends slowly.
LOSS, RATE, DELAY = 0.02, "20mbit", "40ms"
_HOOKS = ("INPUT -i", "FORWARD -i", "OUTPUT -o", "FORWARD -o")


class NoTarget(Exception):
    """The target was gone before the fault, or this machine cannot cause the fault: the fault is skipped."""


Jobs = Mapping[str, SoakTraining | SoakRl]


@contextmanager
def made(drawn: Draw, cluster: Cluster, jobs: Jobs) -> Iterator[None]:
    """Cause the fault before the body, and undo it after it. Raises NoTarget before the body."""
    match drawn.kind:
        case Kind.OPERATOR:
            kill_leader(cluster)
            yield
        case Kind.API_SERVER | Kind.ETCD:
            cluster.stop_control_plane("etcd" if drawn.kind is Kind.ETCD else "kube-apiserver")
            try:
                yield
            finally:
                cluster.restore_control_plane()
        case Kind.NODE | Kind.PARTITION | Kind.FREEZE:
            break_node = {Kind.NODE: cluster.power_off, Kind.PARTITION: cluster.partition, Kind.FREEZE: cluster.freeze}
            try:
                break_node[drawn.kind](drawn.node)
                yield
            finally:
                cluster.restore(drawn.node)
        case Kind.NETWORK:
            try:
                slow_down(cluster, drawn.node)
                yield
            finally:
                speed_up(cluster, drawn.node)
        case _:
            assert drawn.target is not None
            with _made_in_pod(drawn, drawn.target, jobs[drawn.target.job]):
                yield


@contextmanager
def _made_in_pod(drawn: Draw, pod: Pod, job: SoakTraining | SoakRl) -> Iterator[None]:
    pids = job.cluster.container_pids(job.namespace, pod.name)
    if drawn.kind in (Kind.WORKER, Kind.VOLUME, Kind.MEMORY, Kind.CLOCK) and "trainer" not in pids:
        raise NoTarget(f"the trainer of {pod.name} does not run any more")
    match drawn.kind:
        case Kind.WORKER:
            _kill(worker_pids(job, pod.name)[:1], pod)
            yield
        case Kind.LAUNCHER:
            _kill([pid for name, pid in pids.items() if name in ("trainer", "server")], pod)
            yield
        case Kind.SIDECAR:
            _kill([pid for name, pid in pids.items() if name == "understudy-sidecar"], pod)
            yield
        case Kind.POD:
            gone = ("delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=false")
            job.cluster.kubectl("-n", job.namespace, *gone)
            yield
        case _:
            assert isinstance(job, SoakTraining)  # only instrumented pods are drawn
            with _made_in_training(drawn, host_name(pids), job):
                yield


@contextmanager
def _made_in_training(drawn: Draw, host: str, training: SoakTraining) -> Iterator[None]:
    match drawn.kind:
        case Kind.VOLUME:
            with _full(training):
                yield
        case Kind.MEMORY:
            (training.folder / f"allocate-{host}").touch()
            yield
        case Kind.CLOCK:
            with _shifted(training, host, clock_shift_s(drawn)):
                yield
        case _:
            raise NotImplementedError(drawn.kind)


def clock_shift_s(drawn: Draw) -> int:
    """10 to 30 minutes, forth or back."""
    return round(drawn.hold_s * 60) * (1 if drawn.number % 2 else -1)


def _kill(pids: list[int], pod: Pod) -> None:
    if not pids:
        raise NoTarget(f"{pod.name} has no such process")
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def _full(training: SoakTraining) -> Iterator[None]:
    file = training.folder / "filling"
    try:
        fill(file)
        yield
    finally:
        file.unlink(missing_ok=True)


@contextmanager
def _shifted(training: SoakTraining, host: str, seconds: int) -> Iterator[None]:
    if clock_library(training.volume.parent) is None:
        raise NoTarget("there is no C compiler to build the library that shifts a pod's clock")
    try:
        shift_clock(training, host, seconds)
    except FileNotFoundError as error:
        raise NoTarget(f"no process of {host} has loaded the library that shifts its clock") from error
    try:
        yield
    finally:
        shift_clock(training, host, 0)


def has_netem(cluster: Cluster, node: str) -> bool:
    """Whether the kernel can delay packets: only some kernels are built with sch_netem."""
    try:
        run(cluster.node_command(node, "tc", "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms"))
    except CommandFailed:
        return False
    run(cluster.node_command(node, "tc", "qdisc", "del", "dev", "lo", "root"))
    return True


def slow_down(cluster: Cluster, node: str) -> None:
    """A node loses packets and sends slowly. Only netem delays each packet; else packets wait in a token bucket."""
    shape = ["tbf", "rate", RATE, "burst", "32kb", "latency", "200ms"]
    if has_netem(cluster, node):
        shape = ["netem", "rate", RATE, "delay", DELAY]
    run(cluster.node_command(node, "tc", "qdisc", "replace", "dev", "eth0", "root", *shape))
    lose = f"-m statistic --mode random --probability {LOSS} -j DROP"
    rules = ["-N SOAK", f"-A SOAK {lose}", *(f"-I {hook} eth0 -j SOAK" for hook in _HOOKS)]
    for rule in rules:
        run(cluster.node_command(node, "iptables", "-w", *rule.split()))


def speed_up(cluster: Cluster, node: str) -> None:
    """Undo slow_down. Does nothing if the network is not slow."""
    rules = [*(f"-D {hook} eth0 -j SOAK" for hook in _HOOKS), "-F SOAK", "-X SOAK"]
    for rule in rules:
        run(cluster.node_command(node, "iptables", "-w", *rule.split()), check=False)
    run(cluster.node_command(node, "tc", "qdisc", "del", "dev", "eth0", "root"), check=False)

"""The processes of one benchmarked job of ours: whole sidecars, crowds of members, and the operator's stand-in.

One sidecar is the coordinator from the start. It has no launcher, and so no member of its own: all members are in the
crowds. Their processes are niced, because they would run on other machines. The pods are whole sidecars as well, each
on a separate node: spares, and standby coordinators.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.child import Child, Unfinished
from benchmarks.machine import Usage
from benchmarks.rendezvous.network import HERE, Node
from understudy_protocol import pod

CROWDS = 2
NICE = 5
LOOPBACK = "127.0.0.1"
START_S = 60.0


def cpu_of(child: Child) -> float:
    return Usage.of(child.pid).cpu_s


class Job:
    def __init__(
        self,
        stack: ExitStack,
        actives: int,
        *,
        spares: int,
        pods: Sequence[Node],
        far: Node | None,
        bare: bool,
        profile: Path | None,
    ) -> None:
        """spares: in the crowds. pods: the nodes of further sidecars. far: the last active's node, if it is another.

        bare: the coordinator is a bare server of aiohttp, and there is no operator.
        """
        self.actives = actives
        self._profile = profile
        self._service = HERE if pods or far else LOOPBACK
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="understudy-bench-")))
        made = self._bare() if bare else self._sidecar("coordinator", self._service)
        self.coordinator = stack.enter_context(made)
        named = [(f"pod-{number}", node) for number, node in enumerate(pods)]
        self.pods = [stack.enter_context(self._sidecar(name, node.ip, node)) for name, node in named]
        self.operator: Child | None = None
        if not bare:
            self.operator = stack.enter_context(Child("operator", "benchmarks.rendezvous.operator_stand_in", nice=NICE))
        self._members = [list(range(at, actives - bool(far), CROWDS)) for at in range(CROWDS)]
        if far:
            self._members.append([actives - 1])
        self.crowds = [
            stack.enter_context(
                Child(
                    f"members-{at}",
                    "benchmarks.rendezvous.members",
                    nice=NICE,
                    inside=far.inside if far and at == CROWDS else (),
                )
            )
            for at in range(len(self._members))
        ]
        self._prepare(spares)

    def _prepare(self, spares: int) -> None:
        for sidecar in (self.coordinator, *self.pods):
            sidecar.prepare("listening", START_S)
        if self.operator is not None:
            self.operator.prepare("appoint", START_S, host=self._service)
        for at, (crowd, members) in enumerate(zip(self.crowds, self._members, strict=True)):
            waiting = [f"spare-{number}" for number in range(spares)] if at == 0 else []
            crowd.prepare("make", START_S, service=self._service, actives=members, spares=waiting)
        for sidecar in self.pods:
            assert self.operator is not None
            self.operator.prepare("launch", START_S, socket=str(self._folder / sidecar.name / pod.LAUNCHER_SOCKET))

    def shares(self) -> list[int]:
        """The number of actives in each crowd."""
        return [len(members) for members in self._members]

    def crowd_of(self, active: int) -> Child:
        return next(crowd for crowd, members in zip(self.crowds, self._members, strict=True) if active in members)

    def settle(self, number: int, limit_s: float) -> None:
        """Wait until all workers of the round run, and the coordinator knows it. Raises Unfinished."""
        start = time.monotonic()
        observer = self.operator or self.coordinator
        newest = observer.ask("settled", limit_s, number=number, members=self.actives)["round"]
        if newest != number:
            raise Unfinished(f"round {newest} followed on round {number}: members were lost", time.monotonic() - start)

    def end(self) -> None:
        """End all processes at once, the coordinator first, so it handles no losses. Only a profile is still needed."""
        if self._profile is None:
            self.coordinator.kill()
        else:
            self.coordinator.end()
        for child in (*self.crowds, *self.pods, self.operator):
            if child is not None:
                child.kill()

    def _bare(self) -> Child:
        return Child(
            "aiohttp",
            "benchmarks.rendezvous.bare_aiohttp",
            *("--host", self._service, "--actives", str(self.actives)),
        )

    def _sidecar(self, name: str, ip: str, node: Node | None = None) -> Child:
        folder = self._folder / name
        folder.mkdir()
        wanted = ["--profile", str(self._profile)] if self._profile is not None and node is None else []
        return Child(
            name,
            "benchmarks.rendezvous.whole_sidecar",
            *("--name", name, "--ip", ip, "--service", self._service),
            *("--actives", str(self.actives), "--folder", str(folder), *wanted),
            inside=() if node is None else node.inside,
        )


@contextmanager
def running(
    actives: int,
    *,
    spares: int = 0,
    pods: Sequence[Node] = (),
    far: Node | None = None,
    bare: bool = False,
    profile: Path | None = None,
) -> Iterator[Job]:
    with ExitStack() as stack:
        job = Job(stack, actives, spares=spares, pods=pods, far=far, bare=bare, profile=profile)
        try:
            yield job
        finally:
            job.end()

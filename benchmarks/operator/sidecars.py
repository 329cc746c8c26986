"""Simulates the data plane of all launcher jobs: one server answers at every pod's address, as its sidecar would.

The server does the same as a real sidecar, as far as the operator sees it: it proves the job's key; a pod that is not
the leader names the leader; a pod that is appointed becomes the leader, forms round 0 once all pods run, and then
reports the states that a case chooses. A snapshot has a realistic size: all members, all voters, five standby
coordinators.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from aiohttp import web

from benchmarks.operator.kube import Kube
from benchmarks.operator.plan import LIMIT_S
from benchmarks.operator.watches import Pod, Watches
from tests.sealed_socket import SealedSocket, receive_hello, seal
from understudy_protocol import compiled, observer, wire
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason, RoundToken, WorkersState
from understudy_protocol.handshake import HandshakeCalled, Hello, NotProven, Role
from understudy_protocol.membership import Close
from understudy_protocol.observer import (
    Appoint,
    MemberView,
    Observe,
    Recovery,
    Refused,
    Snapshot,
    Stepping,
    StepProgress,
)

STANDBYS = 5
HANDSHAKE_S = 5.0
_OBSERVER = wire.message_types(observer)


@dataclass(frozen=True)
class Keys:
    """The keys of one attempt of a job, which its pods get from the mounted Secret."""

    membership: bytes
    operator: bytes  # public


@dataclass
class PlayedJob:
    """One job's coordinator. `snapshot` is its newest report."""

    uid: str
    name: str
    pods: int
    namespace: str = ""
    attempt: str = ""  # label of the pods that count
    snapshot: Snapshot | None = None
    holder_ip: str = ""
    lines: set[SealedSocket] = field(default_factory=set)  # of callers to the leader
    seen: asyncio.Event = field(default_factory=asyncio.Event)  # a caller has asked it since the last clear()

    @property
    def round(self) -> int:
        return -1 if self.snapshot is None else self.snapshot.token.round

    async def report(self, snapshot: Snapshot) -> float:
        """Send it to all callers. Returns when the sending began, after the encoding."""
        self.snapshot = snapshot
        return await self._send(compiled.encode(snapshot))

    async def step(self, number: int) -> None:
        """The training has made a step. Nothing else has changed."""
        assert self.snapshot is not None
        progress = StepProgress(number, None, time.time())
        self.snapshot = replace(self.snapshot, progress=progress)
        await self._send(compiled.encode(Stepping(progress)))

    async def fail(self) -> None:
        """The budget of restarts in place is spent. The operator decides what happens next."""
        assert self.snapshot is not None
        await self.report(replace(self.snapshot, closed=Close(CloseReason.FAILED, "restart 11 of 10 within 1 h")))

    def next_round(self, workers: WorkersState, recoveries: tuple[Recovery, ...]) -> Snapshot:
        """All ranks stay in their pods: a recovery in place."""
        assert self.snapshot is not None
        token = replace(self.snapshot.token, round=self.snapshot.token.round + 1)
        return with_workers(replace(self.snapshot, token=token, recoveries=recoveries[-10:]), workers)

    async def _send(self, text: bytes) -> float:
        at = time.monotonic()
        for line in list(self.lines):
            with suppress(ConnectionError):
                await line.send(text)
        return at


def with_workers(snapshot: Snapshot, workers: WorkersState) -> Snapshot:
    return replace(snapshot, members=tuple(replace(member, workers=workers) for member in snapshot.members))


class Sidecars:
    def __init__(self, kube: Kube, namespace: str, watches: Watches) -> None:
        self._kube, self._namespace, self._watches = kube, namespace, watches
        self.jobs: dict[str, PlayedJob] = {}  # by uid
        self._keys: dict[str, Keys] = {}  # by the job_uid of a Hello: each attempt has its own key
        self._rounds: set[asyncio.Task[None]] = set()
        app = web.Application()
        app.router.add_get(names.MEMBERSHIP_PATH, self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "0.0.0.0", names.COORDINATOR_PORT).start()

    async def stop(self) -> None:
        for task in self._rounds:
            task.cancel()
        await asyncio.gather(*self._rounds, return_exceptions=True)
        for job in self.jobs.values():
            for line in list(job.lines):
                await line.close()
        await self._runner.cleanup()

    def play(self, uid: str, name: str, pods: int, namespace: str = "") -> PlayedJob:
        job = self.jobs[uid] = PlayedJob(uid, name, pods, namespace or self._namespace)
        return job

    async def round_after_loss(self, job: PlayedJob, lost: MemberView) -> Snapshot:
        """The next round, once the operator has created another pod, which takes the lost rank."""
        assert job.snapshot is not None
        known = {lost.pod_uid, *(member.pod_uid for member in job.snapshot.members)}

        def new() -> list[Pod]:
            return [pod for pod in self._of(job) if pod.metadata.uid not in known]

        await self._watches.until(f"a pod of {job.name} is replaced", lambda: bool(new()), LIMIT_S)
        pod = new()[0]
        member = replace(lost, pod_uid=pod.metadata.uid, pod_name=pod.metadata.name, node=pod.spec.node_name)
        formed = job.next_round(WorkersState.RUNNING, job.snapshot.recoveries)
        members = (*formed.members, replace(member, workers=WorkersState.RUNNING))
        voters = tuple(member.pod_uid for member in members)
        return replace(formed, members=members, voters=voters, waiting_for="")

    # One caller -----------------------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        assert request.transport is not None
        called = request.transport.get_extra_info("sockname")[0]
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        async with asyncio.timeout(HANDSHAKE_S):
            try:
                hello = await receive_hello(socket)
                job = self._played(hello.job_uid)
                line = await seal(socket, await self._called(job, called, hello), hello)
            except ConnectionError:
                return socket  # the operator has ended the call, for example because it has found the coordinator
            except NotProven:
                if socket.closed:
                    return socket
                raise
        job.attempt = max(job.attempt, hello.job_uid.removeprefix(job.uid).removeprefix("-"))
        try:
            while (text := await line.receive()) is not None:
                message = compiled.decode(text, _OBSERVER)
                if isinstance(message, Observe | Appoint):
                    await self._answer(job, called, message, line)
        finally:
            job.lines.discard(line)
        return socket

    def _played(self, job_uid: str) -> PlayedJob:
        """job_uid: ends with the attempt, from the second one on. Raises NotProven."""
        found = next((job for uid, job in self.jobs.items() if job_uid == uid or job_uid.startswith(f"{uid}-")), None)
        if found is None:
            raise NotProven(f"{job_uid}: no such job is played")
        return found

    async def _called(self, job: PlayedJob, ip: str, hello: Hello) -> HandshakeCalled:
        """The pod's side of the handshake, for the pod with this address."""
        return _side_of(await self._pod_at(job, ip), await self._keys_at(job, hello.job_uid), hello)

    async def _keys_at(self, job: PlayedJob, job_uid: str) -> Keys:
        """The keys that the sidecars get from the mounted Secret. job_uid: as in _played."""
        if job_uid not in self._keys:
            name = f"{job.name}-{job.uid}-membership{job_uid.removeprefix(job.uid)}"
            secret = await self._kube.call("GET", f"/api/v1/namespaces/{job.namespace}/secrets/{name}")
            self._keys[job_uid] = _keys_in(secret["data"])
        return self._keys[job_uid]

    async def _pod_at(self, job: PlayedJob, ip: str) -> Pod:
        """Waits, because the operator may see a pod start before this process does."""

        def found() -> Pod | None:
            pods = self._watches.pods.of_job[job.uid].values()
            return next((pod for pod in pods if pod.runs and pod.status.ip == ip), None)

        await self._watches.until(f"a pod of {job.name} runs at {ip}", lambda: found() is not None, HANDSHAKE_S)
        pod = found()
        assert pod is not None
        return pod

    async def _answer(self, job: PlayedJob, called: str, requests: Observe | Appoint, line: SealedSocket) -> None:
        known = job.snapshot
        if isinstance(requests, Appoint) and (known is None or known.token.epoch < requests.epoch):
            holder = next(pod for pod in self._of(job) if pod.status.ip == called)
            token = RoundToken(requests.epoch, 1, requests.at_least_round)
            known = job.snapshot = self._whole(job, holder.metadata.uid, token, formed=False)
            job.holder_ip, job.lines = called, set()
            task = asyncio.create_task(self._form(job), name=f"round 0 of {job.name}")
            self._rounds.add(task)
            task.add_done_callback(self._rounds.discard)
        if known is None or called != job.holder_ip:
            named = ("", "") if known is None else (known.pod_uid, job.holder_ip)
            await line.send(compiled.encode(Refused("this sidecar is not the coordinator", *named)))
            return
        job.lines.add(line)
        await line.send(compiled.encode(known))
        job.seen.set()

    async def _form(self, job: PlayedJob) -> None:
        """Form the first round, once all pods are there."""
        await self._watches.until(f"the pods of {job.name} run", lambda: len(self._of(job)) >= job.pods, LIMIT_S)
        known = job.snapshot
        assert known is not None
        token = replace(known.token, round=known.token.round + 1)
        await job.report(self._whole(job, known.pod_uid, token, formed=True))

    def _of(self, job: PlayedJob) -> list[Pod]:
        pods = (pod for pod in self._watches.pods.of_job[job.uid].values() if pod.runs)
        return [pod for pod in pods if pod.metadata.labels.get(names.LABEL_ATTEMPT, "") == job.attempt]

    def _whole(self, job: PlayedJob, holder: str, token: RoundToken, *, formed: bool) -> Snapshot:
        """Before the round is formed all members wait. In it each pod has the ranks that it was created for."""
        members = tuple(_view(pod, formed) for pod in self._of(job))
        uids = tuple(member.pod_uid for member in members)
        standbys = tuple(uid for uid in uids if uid != holder)[:STANDBYS]
        waiting = "" if formed else f"{len(members)} of {job.pods} members are there"
        voters = uids if formed else ()
        actives = len(members) if formed else 0
        return Snapshot(token, holder, members, (), (), {}, None, waiting, None, actives, standbys, voters)


def _view(pod: Pod, with_ranks: bool) -> MemberView:
    metadata = pod.metadata
    index = int(metadata.annotations[names.ANNOTATION_GROUP_RANK])
    workers = WorkersState.RUNNING if with_ranks else WorkersState.IDLE
    return MemberView(metadata.uid, metadata.name, pod.spec.node_name, index, index if with_ranks else None, workers)


def _side_of(pod: Pod, keys: Keys, hello: Hello) -> HandshakeCalled:
    me = (pod.metadata.uid, pod.status.ip)
    return HandshakeCalled(keys.membership, Role.OBSERVER, hello.job_uid, *me, keys.operator)


def _keys_in(data: Mapping[str, str]) -> Keys:
    def key(name: str) -> bytes:
        return bytes.fromhex(base64.b64decode(data[name]).decode())

    return Keys(key(names.KEY_FILE), key(names.OPERATOR_KEY_FILE))

"""The reports about weight updates to a job's sidecar: by a real update, over the sidecar's real socket."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.rollout.model import PATIENT, TENSORS, Cluster, Fault, Kind, Place, notes, only
from understudy_protocol import pod, wire
from understudy_protocol.enums import RoundToken
from understudy_protocol.membership import Replicas
from understudy_rollout import JobLink, Timeouts, WeightUpdate
from understudy_rollout.engine import NoAdmission
from understudy_rollout.update_reports import ENV_ROUND, ENV_SOCKET, fence_of, link_from
from understudy_rollout.weights import Weights
from understudy_sidecar import rollouts_link
from understudy_sidecar.rollouts_link import RolloutsLink

FENCE = (7, 1, 3)


class Job:
    """A trainer's process in a job: its replicas, its link to the sidecar, and the reports that the sidecar got."""

    def __init__(self, socket: Path, heard: list[Replicas]) -> None:
        self.socket, self.heard, self.cluster = socket, heard, Cluster()
        self.link = JobLink(str(socket), FENCE, rank=4)

    async def update(self, version: str, *faults: Fault, timeouts: Timeouts = PATIENT) -> BaseException | None:
        cluster = self.cluster
        cluster.world.faults, cluster.sends = list(faults), version
        cluster.world.wants.clear()
        cluster.world.hangs = asyncio.Event()
        replicas, trainer = cluster.replicas, cluster.trainer

        async def work() -> None:
            async with WeightUpdate(replicas, trainer, version=version, timeouts=timeouts, job=self.link) as update:
                await update.transfer(TENSORS)

        cluster.world.updating = asyncio.ensure_future(work())
        (outcome,) = await asyncio.gather(cluster.world.updating, return_exceptions=True)
        return outcome

    def states(self) -> list[tuple[int, int, int]]:
        return [(x.fresh, x.updating, x.uncertain) for x in self.heard]


@asynccontextmanager
async def in_a_job() -> AsyncIterator[Job]:
    heard: list[Replicas] = []
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / pod.ROLLOUTS_SOCKET
        server = await RolloutsLink(heard.append).listen(socket)
        yield Job(socket, heard)
        server.close()


async def test_an_update_is_reported_when_it_begins_and_when_it_is_complete() -> None:
    async with in_a_job() as job:
        assert await job.update("v1") is None
        assert job.states() == [(0, 2, 0), (2, 0, 0)]
        assert [x.version for x in job.heard] == ["", "v1"]
        assert {(x.token, x.rank, x.failure) for x in job.heard} == {(RoundToken(*FENCE), 4, None)}


async def test_a_failed_update_is_reported_with_its_first_error_before_the_caller_gets_it() -> None:
    async with in_a_job() as job:
        fault = Fault("rollout-1", "receive", Place.IN, Kind.ERROR)
        assert await job.update("v1", fault) is fault.raised
        assert job.states() == [(0, 2, 0), (0, 0, 2)]
        failure = job.heard[-1].failure
        assert failure is not None
        assert (failure.version, failure.in_a_row, failure.blocked) == ("v1", 1, ())
        assert failure.message == "Broken: rollout-1 broke in receive"


async def test_failures_in_a_row_are_counted_until_an_update_is_complete() -> None:
    async with in_a_job() as job:
        for version in ("v1", "v2"):
            await job.update(version, Fault("rollout-0", "finish", Place.BEFORE, Kind.ERROR))
        await job.update("v3")
        await job.update("v4", Fault("rollout-0", "finish", Place.BEFORE, Kind.ERROR))
        failures = [x.failure for x in job.heard if x.failure is not None]
        assert [(x.version, x.in_a_row) for x in failures] == [("v1", 1), ("v2", 2), ("v4", 1)]
        assert job.heard[-1].version == "v3", "the newest whole one"


async def test_replicas_that_stay_blocked_in_their_group_are_named() -> None:
    async with in_a_job() as job:
        receive = Fault("rollout-0", "receive", Place.IN, Kind.ERROR)
        leave = Fault("rollout-1", "leave_group", Place.BEFORE, Kind.TIMEOUT)
        await job.update("v1", receive, leave, timeouts=only("undo", 0.05))
        failure = job.heard[-1].failure
        assert failure is not None
        assert failure.blocked == ("rollout-1",)


async def test_an_update_that_is_cancelled_before_it_touches_weights_is_no_failure() -> None:
    async with in_a_job() as job:
        fault = Fault("rollout-0", "release_kv", Place.IN, Kind.CANCELLATION)
        assert isinstance(await job.update("v1", fault), asyncio.CancelledError)
        assert (job.states()[-1], job.heard[-1].failure) == ((2, 0, 0), None)


@pytest.mark.parametrize("method", ["stop_generation", "release_kv", "join_group"])
async def test_a_canceled_update_of_uncertain_replicas_is_no_failure(method: str) -> None:
    async with in_a_job() as job:
        # given servers without any update so far
        for replica in job.cluster.replicas:
            replica.weights = Weights()
            job.cluster.gates[replica.name].weights = Weights()
        fault = Fault("rollout-0", method, Place.IN, Kind.CANCELLATION)
        assert isinstance(await job.update("v1", fault), asyncio.CancelledError)
        assert (job.states()[-1], job.heard[-1].failure) == ((0, 0, 2), None)


async def test_an_update_that_is_canceled_in_its_transfer_is_a_failure() -> None:
    async with in_a_job() as job:
        fault = Fault("rollout-0", "receive", Place.IN, Kind.CANCELLATION)
        assert isinstance(await job.update("v1", fault), asyncio.CancelledError)
        assert job.states()[-1] == (0, 0, 2)
        assert job.heard[-1].failure is not None


async def test_a_missing_sidecar_fails_no_update_and_is_noted_on_a_failed_one(caplog: pytest.LogCaptureFixture) -> None:
    async with in_a_job() as job:
        job.link = JobLink("/nowhere/rollouts.sock", FENCE, rank=0)
        with caplog.at_level(logging.WARNING):
            assert await job.update("v1") is None
        assert "cannot report the weight update to the job's sidecar: FileNotFoundError" in caplog.text
        error = await job.update("v2", Fault("rollout-1", "receive", Place.IN, Kind.ERROR))
        assert any(line.startswith("and the report to the job's sidecar failed: File") for line in notes(error))


async def test_the_answer_of_a_sidecar_that_rejects_is_quoted(caplog: pytest.LogCaptureFixture) -> None:
    async with in_a_job() as job:
        job.link = JobLink(job.link._socket, FENCE, rank=1 << 70)
        with caplog.at_level(logging.WARNING):
            assert await job.update("v1") is None
        assert "the sidecar answered 'refused: Replicas.rank" in caplog.text
        assert job.heard == []


async def test_a_caller_that_sends_nothing_or_garbage_is_disconnected() -> None:
    async with in_a_job() as job:
        for line in (b"", b"{}\n", b'{"type": "Haiku"}\n', b"x" * 100_000 + b"\n"):
            reader, writer = await asyncio.open_unix_connection(job.link._socket)
            writer.write(line)
            writer.write_eof()
            answer = await reader.read(1000)
            assert answer == b"" or answer.startswith(b"refused: ")
            writer.close()
        assert await job.update("v1") is None
        assert len(job.heard) == 2


def test_the_environment_of_a_worker_has_the_sidecars_socket() -> None:
    assert link_from({}) is None
    link = link_from({ENV_SOCKET: "/understudy/rollouts.sock", ENV_ROUND: "1763.2.5", "RANK": "3"})
    assert link is not None
    assert link.fence == (1763, 2, 5)


async def test_gateways_get_the_round_of_the_job_as_the_updates_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_ROUND, "7.1.3")
    fences: list[tuple[int, int, int]] = []

    class Gate(NoAdmission):
        async def close(self, update: str, version: str, fence: tuple[int, int, int]) -> None:
            fences.append(fence)

    cluster = Cluster()
    for replica in cluster.replicas:
        replica.admission = Gate()
    async with WeightUpdate(cluster.replicas, version="v1", timeouts=PATIENT) as update:
        await update.load("v1")
    assert fences == [FENCE, FENCE]


def test_an_invalid_round_is_named() -> None:
    assert fence_of({}) == (0, 0, 0)
    with pytest.raises(ValueError, match=r"UNDERSTUDY_ROUND: expected epoch.term.round, three numbers; got '5'"):
        fence_of({ENV_ROUND: "5"})


def test_the_names_are_the_protocols() -> None:
    assert (ENV_SOCKET, ENV_ROUND) == (pod.ENV_ROLLOUTS_SOCKET, pod.ENV_ROUND)


# Attacks on the socket ------------------------------------------------------------------------------------------------


@pytest.mark.attack("C4", "a process of the trainer that sends garbage to the socket", before="refused, too")
@pytest.mark.parametrize(
    "garbage",
    [b"x" * 100 + b"\n", b"[" * 60_000 + b"\n", b'{"type":"Later"}\n', b'{"type":"Replicas","rank":"x"}\n', b"\n"],
    ids=["noise", "deep", "another-message", "wrong-field", "empty"],
)
async def test_garbage_is_no_report_and_ends_the_connection_that_sent_it(garbage: bytes) -> None:
    async with in_a_job() as job:
        # given a connection that is about to report
        honest = await asyncio.open_unix_connection(str(job.socket))
        # when another one sends garbage
        reader, writer = await asyncio.open_unix_connection(str(job.socket))
        writer.write(garbage)
        # then it is refused
        assert (await reader.read()).startswith(b"refused: ")
        # and the other connection reports
        assert await reported(*honest) == b"taken\n"
        assert len(job.heard) == 1
        writer.close()


@pytest.mark.attack("C4", "a process of the trainer that opens connections without end", before="all of them stayed")
async def test_of_many_connections_only_the_newest_64_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts_link, "READ_LIMIT_S", 3600.0)  # no connection is ended because it is silent
    async with in_a_job() as job:
        # when a process opens 100 connections, and then a worker reports
        silent = [await asyncio.open_unix_connection(str(job.socket)) for _ in range(100)]
        assert await reported(*await asyncio.open_unix_connection(str(job.socket))) == b"taken\n"
        # then the sidecar has ended the oldest connections
        async with asyncio.timeout(30):
            assert [await reader.read() for reader, _ in silent[:37]] == [b""] * 37
        assert not any(reader.at_eof() for reader, _ in silent[37:])
        for _, writer in silent:
            writer.close()


async def reported(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The answer to a report."""
    writer.write(wire.encode(Replicas(RoundToken(*FENCE), 4, 2, 0, 0, "v1")).encode() + b"\n")
    answer = await reader.read()
    writer.close()
    return answer

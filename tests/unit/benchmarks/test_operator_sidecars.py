"""The simulated data plane answers as sidecars do; the operator's own client calls it here."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from benchmarks.operator.sidecars import PlayedJob, Sidecars
from benchmarks.operator.watches import Watches
from tests.ports import free_port
from understudy_operator.runtime import line as operators
from understudy_operator.runtime.line import Keys, Line, open_line
from understudy_protocol import pod as names
from understudy_protocol.enums import WorkersState
from understudy_protocol.noise import public_key
from understudy_protocol.observer import Appoint, Observe, Refused, Snapshot, Stepping

UID, PODS = "uid-job", 3
KEYS = Keys(membership=bytes(range(32)), operator=bytes(range(32, 64)))
LIMIT_BYTES = 1 << 20
LIMIT_S = 10.0


class Secrets:
    """The part of the API server that the sidecars call."""

    async def call(self, method: str, path: str, **query: str) -> dict[str, Any]:
        assert (method, path.rpartition("/")[2]) == ("GET", f"job-{UID}-membership")
        return a_secret(KEYS.membership)


def a_secret(membership: bytes) -> dict[str, Any]:
    keys = {names.KEY_FILE: membership, names.OPERATOR_KEY_FILE: public_key(KEYS.operator)}
    return {"data": {name: base64.b64encode(key.hex().encode()).decode() for name, key in keys.items()}}


def pod(index: int, phase: str) -> msgspec.Raw:
    metadata = {
        "name": f"job-{index}",
        "uid": f"uid-{index}",
        "resourceVersion": "1",
        "labels": {names.LABEL_JOB_UID: UID},
        "annotations": {names.ANNOTATION_GROUP_RANK: str(index)},
    }
    raw = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": phase, "podIP": ip(index)}}
    return msgspec.Raw(json.dumps(raw).encode())


def ip(index: int) -> str:
    return f"127.66.1.{index + 1}"


@pytest.fixture
async def watches() -> Watches:
    watches = Watches(lambda: ())
    for index in range(PODS):
        watches.pods.on_event("ADDED", pod(index, "Running"), 0.0)
    return watches


@pytest.fixture
async def job(watches: Watches, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlayedJob]:
    # All pods have the same port: one that is free here.
    monkeypatch.setattr(names, "COORDINATOR_PORT", free_port())
    sidecars = Sidecars(Secrets(), "bench", watches)  # type: ignore[arg-type]
    await sidecars.start()
    yield sidecars.play(UID, "job", PODS)
    await sidecars.stop()


def line_to(index: int, keys: Keys = KEYS) -> AbstractAsyncContextManager[Line]:
    return open_line(ip(index), f"uid-{index}", UID, keys, LIMIT_BYTES)


async def ask(line: Line, message: object) -> AsyncIterator[object]:
    line.enqueue(message)
    async for answer in line.messages():
        yield answer


async def first(answers: AsyncIterator[object]) -> object:
    async with asyncio.timeout(LIMIT_S):
        return await anext(answers)


async def test_the_appointed_pod_becomes_coordinator_and_forms_the_first_round(job: PlayedJob) -> None:
    async with line_to(1) as line:
        answers = ask(line, Appoint(9, -1, {}))
        appointed, started = await first(answers), await first(answers)

    assert isinstance(appointed, Snapshot)
    assert (appointed.token.epoch, appointed.token.round, appointed.pod_uid) == (9, -1, "uid-1")
    assert isinstance(started, Snapshot)
    assert started.token.round == 0
    assert [(x.group_rank, x.workers) for x in started.members] == [(n, WorkersState.RUNNING) for n in range(PODS)]
    assert set(started.voters) == {"uid-0", "uid-1", "uid-2"}
    assert started.standby_coordinators == ("uid-0", "uid-2")


async def test_a_pod_that_is_not_the_coordinator_names_it(job: PlayedJob) -> None:
    async with line_to(0) as line:
        nobody = await first(ask(line, Observe()))
    async with line_to(1) as line:
        await first(ask(line, Appoint(9, -1, {})))
    async with line_to(0) as line:
        named = await first(ask(line, Observe()))

    assert isinstance(nobody, Refused)
    assert nobody.pod_uid == ""
    assert isinstance(named, Refused)
    assert (named.pod_uid, named.ip) == ("uid-1", ip(1))


async def test_a_round_waits_until_all_pods_run(job: PlayedJob, watches: Watches) -> None:
    watches.pods.on_event("MODIFIED", pod(2, "Pending"), 1.0)
    async with line_to(0) as line:
        answers = ask(line, Appoint(9, 4, {}))
        waiting = await first(answers)
        assert isinstance(waiting, Snapshot)
        assert (waiting.token.round, waiting.waiting_for) == (4, "2 of 3 members are there")

        watches.pods.on_event("MODIFIED", pod(2, "Running"), 2.0)
        started = await first(answers)

    assert isinstance(started, Snapshot)
    assert (started.token.round, len(started.members)) == (5, PODS)


async def test_messages_reach_the_pods_that_follow_the_coordinator(job: PlayedJob) -> None:
    async with line_to(0) as line:
        answers = ask(line, Appoint(9, -1, {}))
        for _ in range(2):
            await first(answers)

        await job.report(job.next_round(WorkersState.STARTING, ()))
        result = await first(answers)
        await job.step(7)
        stepped = await first(answers)

    assert isinstance(result, Snapshot)
    assert (result.token.round, {x.workers for x in result.members}) == (1, {WorkersState.STARTING})
    assert isinstance(stepped, Stepping)
    assert stepped.progress.step == 7


@pytest.mark.parametrize("keys", [Keys(bytes(31) + b"1", KEYS.operator), Keys(KEYS.membership, bytes(32))])
async def test_a_caller_with_another_key_is_not_answered(job: PlayedJob, keys: Keys) -> None:
    with pytest.raises(operators.FAILURES):
        async with line_to(0, keys) as line:
            await first(ask(line, Observe()))

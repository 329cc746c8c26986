"""make bench-rollout, with a few replicas."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from benchmarks.goals import Verdict, check
from benchmarks.records import Sample, sum_up
from benchmarks.rollout.__main__ import CASES, GATEWAY, measure, measure_gateway
from benchmarks.rollout.goals import GOALS
from benchmarks.rollout.load import Load, RequestFailed
from tests.unit.tcp_server import tcp_server

SYSTEMS = {"direct", "understudy", "nginx"}


def measured_gateway(servers: int) -> list[Sample]:
    return [x for samples in measure_gateway(servers, [50], 0.2, lambda case, rate: [4]) for x in samples]


def test_every_case_gives_the_numbers_of_its_goals() -> None:
    samples = [x for case in CASES if case != GATEWAY for x in measure(case, replicas=3, runs=[4])]
    records = sum_up([*samples, *measured_gateway(1)])
    measured = {(x.case, x.metric) for x in records}
    assert {(goal.case, goal.metric) for goal in GOALS} <= measured
    for x in records:
        assert x.runs == 1
        assert x.min == x.median == x.max, x
    # each of an update's seven calls takes 50 ms in the engine, and the one that is slow in a restore one second
    seconds = {(x.case, x.system): x.min or 0.0 for x in records if x.metric == "seconds"}
    assert 0.35 < seconds["update-overhead", "bare-calls"] < 10
    assert 0.35 < seconds["update-overhead", "understudy"] < 10
    assert 1.0 < seconds["restore", "understudy"] < 10
    # and measurements of another size prove nothing about a goal
    assert {x.verdict for x in check(GOALS, records)} == {Verdict.OPEN}
    assert {goal.size for goal in GOALS} == {64, 500}


def test_each_of_several_servers_has_a_gateway_and_an_nginx() -> None:
    samples = measured_gateway(3)
    assert {(x.system, x.case) for x in samples} == {
        (system, case) for system in SYSTEMS for case in ("gateway-whole-3", "gateway-streamed-3")
    }
    for x in samples:
        assert 0 < x.values["p50_ms"] <= x.values["p99_ms"]
        assert ("cpu_us" in x.values) == (x.system != "direct")


def test_measured_runs_are_not_repeated() -> None:
    assert list(measure_gateway(1, [50], 0.2, lambda case, rate: [])) == []


async def test_an_answer_with_another_status_ends_the_benchmark() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # most connections are closed without a request
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    async with tcp_server(refuse) as (_, port):
        load = Load([port], streamed=False)
        await load.connect()
        with pytest.raises(RequestFailed, match="503 Service Unavailable"):
            await load.run(50, 0.1)
        load.close()

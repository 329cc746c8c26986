"""Two real replicas that Prometheus scrapes: only one reports jobs, a recovery counts once; JSON logs."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.integration.conftest import an_api_server
from tests.integration.operator.conftest import kube_of
from tests.integration.operator.kube import Kube
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.training import Training
from tests.ports import free_port
from tests.unit.operator.metrics.reading import scraped
from understudy_protocol.enums import Fault, Strategy
from understudy_protocol.observer import Cause, Recovery

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(120)

LEADER, RUNNING = ("understudy_leader", "0"), ("understudy_jobs", "Running")
COUNTED = ("understudy_recoveries_total", "Process", "Recovered", "InPlace")
Samples = dict[tuple[str, ...], float]


class Scraped:
    """Both replicas, and their metrics; no metrics of one that has ended."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._logs = {name: folder / f"{name}.log" for name in ("replica-0", "replica-1")}
        self._ports = {name: free_port() for name in self._logs}
        self.processes = {
            name: OperatorProcess(
                kubeconfig,
                free_port(),
                log,
                name,
                UNDERSTUDY_METRICS_PORT=str(self._ports[name]),
                UNDERSTUDY_LOG_FORMAT="json",
            )
            for name, log in self._logs.items()
        }

    @property
    def runs(self) -> bool:
        return any(process.runs for process in self.processes.values())

    def log(self) -> str:
        return "\n".join(process.log() for process in self.processes.values())

    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for log in self._logs.values() for line in log.read_text().splitlines()]

    async def samples(self) -> dict[str, Samples]:
        found = {}
        async with aiohttp.ClientSession() as session:
            for name, port in self._ports.items():
                try:
                    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                        found[name] = scraped(await answer.read())
                except aiohttp.ClientError:
                    continue
        return found

    async def leader(self) -> str:
        return next((name for name, lines in (await self.samples()).items() if lines[LEADER]), "")


@pytest.fixture(scope="module")
def api_server() -> "Iterator[ApiServer]":
    """Without the jobs of other tests: the metrics cover all jobs of a cluster."""
    with an_api_server() as server:
        yield server


@pytest.fixture
def replicas(kubeconfig: Path, tmp_path: Path) -> Iterator[Scraped]:
    replicas = Scraped(kubeconfig, tmp_path)
    for process in replicas.processes.values():
        process.start()
    yield replicas
    for process in replicas.processes.values():
        process.kill()


@pytest.fixture
async def kube(api_server: "ApiServer", replicas: Scraped) -> AsyncIterator[Kube]:
    async with kube_of(api_server, replicas) as kube:
        await kube.until("one leads", replicas.leader)
        yield kube


@pytest.fixture
async def training(kube: Kube) -> AsyncIterator[Training]:
    training = Training(kube)
    yield training
    await training.stop()


async def test_a_recovery_counts_once_over_a_failover_and_the_leader_alone_reports_jobs(
    training: Training, kube: Kube, replicas: Scraped
):
    # given a job that trains, and has recovered
    a0, a1, spare = await training.start()
    rank_holders = [(a0, 0), (a1, 1), (spare, None)]
    now = time.time()
    cause = Cause(0, a0["metadata"]["name"], "n0", 1, None, "exit code 1")
    done = Recovery(1, Fault.PROCESS, Strategy.IN_PLACE, cause, now - 2.0, now - 1.5, "")
    await training.report(1, rank_holders, recoveries=(done,), counts={"InPlace": 1})

    async def counted() -> Samples:
        lines = (await replicas.samples()).get(await replicas.leader(), {})
        return lines if lines.get(COUNTED) and lines.get(RUNNING) == 1 else {}

    # then its leader reports it
    lines = await kube.until("the leader counts it", counted)
    first = await replicas.leader()
    assert lines[("understudy_recovery_seconds_sum", "Process", "InPlace")] == pytest.approx(0.5, abs=0.01)
    assert lines[("understudy_spares", "ready")] == 1
    assert lines[("understudy_api_requests_total", "pods", "Ok", "create")] >= 3
    assert lines[("understudy_reconcile_seconds_count", "TrainingJob")] > 0

    # and the standby replica reports nothing of it
    async def standby() -> Samples:
        return next((lines for name, lines in (await replicas.samples()).items() if name != first), {})

    other = await kube.until("the other replica serves its metrics", standby)
    assert (other[LEADER], other[COUNTED], RUNNING in other) == (0, 0, False)

    # when the leader is killed, and the coordinator repeats its report to the next one
    replicas.processes[first].kill()
    await kube.until("the other one leads", replicas.leader)
    await training.report(2, rank_holders, recoveries=(done,), counts={"InPlace": 1})

    async def is_reported() -> bool:
        return (await training.status()).get("round") == 2

    # then that one reports the job, and has not counted its recovery again
    await kube.until("round 2 is reported", is_reported)
    ((_, lines),) = (await replicas.samples()).items()
    assert (lines[LEADER], lines[RUNNING], lines[COUNTED]) == (1, 1, 0)

    # and every line of both logs is an object, those of the job with its name
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in replicas.lines())
    created = [line for line in replicas.lines() if " created: " in line["message"]]
    assert {(line["namespace"], line["job"]) for line in created} == {(kube.namespace, (await job_name(kube)))}


async def job_name(kube: Kube) -> str:
    (raw,) = await kube.list("trainingjobs")
    return str(raw["metadata"]["name"])

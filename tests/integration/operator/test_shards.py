"""Shards of the operator: each writes only in its own namespaces, and no namespace has two writers, even while the
number of shards changes or a leader is killed.

Each process has a token of its own, so the API server's audit log names the process that has sent a write. The API
server is this module's own, because other tests need no audit log.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import an_api_server
from tests.integration.operator.conftest import SYSTEM, install_rights, must
from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.replicas import Replicas, health
from tests.integration.operator.training import Training
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(300)

#: The namespaces of shard 0 of 2 and of shard 1 of 2.
FIRST, SECOND = "team-a", "team-c"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
FAILOVER_S = 15.5
SLOW_S = 1.5  # the additional time on a busy machine
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "users": [f"system:serviceaccount:{SYSTEM}:understudy-operator"],
            "verbs": ["create", "update", "patch", "delete"],
            "namespaces": [FIRST, SECOND],
        },
        {"level": "None"},
    ],
}


@pytest.fixture(scope="module")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="module")
def api_server(audit_log: Path) -> Iterator["ApiServer"]:
    policy = audit_log.parent / "policy.json"
    policy.write_text(json.dumps(POLICY))
    with an_api_server(f"--audit-policy-file={policy}", f"--audit-log-path={audit_log}") as server:
        for namespace in (FIRST, SECOND):
            must(server.kubectl("create", "namespace", namespace))
        yield server


@pytest.fixture(scope="module")
def kubeconfig(api_server: "ApiServer", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the rights of the chart for two shards, which have to be enough for one shard, too."""
    return install_rights(api_server, tmp_path_factory.mktemp("operator"), "operator.shards=2")


@dataclass
class Write:
    at: str
    process: str
    namespace: str


class Shards:
    """Processes of one or two layouts, and their writes to the objects of jobs."""

    def __init__(self, api_server: "ApiServer", kubeconfig: Path, folder: Path, audit_log: Path) -> None:
        self._server, self._kubeconfig, self._folder, self._audit_log = api_server, kubeconfig, folder, audit_log
        self._skipped = len(self._entries())
        self._names: dict[str, str] = {}  # by the ID of the process's token
        self.processes: list[OperatorProcess] = []

    @property
    def runs(self) -> bool:
        return any(process.runs for process in self.processes)

    def log(self) -> str:
        return Replicas(self.processes).log()

    def start(self, name: str, shard: str = "") -> OperatorProcess:
        """shard: as in UNDERSTUDY_SHARD; "" for a single one."""
        folder = self._folder / name
        folder.mkdir()
        token = must(self._server.kubectl("-n", SYSTEM, "create", "token", "understudy-operator")).strip()
        configuration = json.loads(self._kubeconfig.read_text())
        configuration["users"][0]["user"] = {"token": token}
        (folder / "kubeconfig").write_text(json.dumps(configuration))
        self._names[_id_of(token)] = name
        env = {"UNDERSTUDY_SHARD": shard} if shard else {}
        process = OperatorProcess(folder / "kubeconfig", free_port(), folder / "log", name, **env)
        process.start()
        self.processes.append(process)
        return process

    def writes(self, namespace: str = "") -> list[Write]:
        """In the order of their arrival; in one namespace, or in all."""
        found = []
        for entry in self._entries()[self._skipped :]:
            (token,) = entry["user"]["extra"]["authentication.kubernetes.io/credential-id"]
            at, where = entry["requestReceivedTimestamp"], entry["objectRef"]["namespace"]
            if namespace in ("", where):
                found.append(Write(at, self._names[token.removeprefix("JTI=")], where))
        return sorted(found, key=lambda write: write.at)

    def writers(self, namespace: str) -> list[str]:
        """The processes that have written in the namespace, in turn: a process that returns is listed twice."""
        names = [write.process for write in self.writes(namespace)]
        return [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]

    def _entries(self) -> list[Raw]:
        return (
            [json.loads(line) for line in self._audit_log.read_text().splitlines()] if self._audit_log.exists() else []
        )


def _id_of(token: str) -> str:
    body = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return str(claims["jti"])


@pytest.fixture
def shards(api_server: "ApiServer", kubeconfig: Path, tmp_path: Path, audit_log: Path) -> Iterator[Shards]:
    shards = Shards(api_server, kubeconfig, tmp_path, audit_log)
    yield shards
    for process in shards.processes:
        process.kill()
    for name in ("", "-0-of-2", "-1-of-2"):  # the next test does not wait for their end
        must(api_server.kubectl("-n", SYSTEM, "delete", "lease", f"understudy-operator{name}", "--ignore-not-found"))


@asynccontextmanager
async def training_in(api_server: "ApiServer", namespace: str, shards: Shards) -> AsyncIterator[Training]:
    kube = Kube(api_server, namespace, shards)
    training = Training(kube)
    yield training
    await training.stop()
    # No garbage collector runs here.
    for plural in ("trainingjobs", "pods", "secrets", "services"):
        for raw in await kube.list(plural):
            await kube.call("DELETE", f"{plural}/{raw['metadata']['name']}", {"gracePeriodSeconds": 0})
    await kube.close()


@pytest.fixture
async def first(api_server: "ApiServer", shards: Shards) -> AsyncIterator[Training]:
    async with training_in(api_server, FIRST, shards) as training:
        yield training


@pytest.fixture
async def second(api_server: "ApiServer", shards: Shards) -> AsyncIterator[Training]:
    async with training_in(api_server, SECOND, shards) as training:
        yield training


async def has_role(kube: Kube, process: OperatorProcess, role: str) -> None:
    async def look() -> bool:
        return await health(process, "/readyz") == (200, role)

    await kube.until(f"{process.name} is {role}", look)


async def has_logged(kube: Kube, process: OperatorProcess, text: str) -> None:
    async def look() -> bool:
        return text in process.log()

    await kube.until(f"{process.name} logs {text}", look)


async def until_leader(kube: Kube, *processes: OperatorProcess) -> OperatorProcess:
    async def look() -> OperatorProcess | None:
        for process in processes:
            if process.runs and await health(process, "/readyz") == (200, "leader"):
                return process
        return None

    found = await kube.until(f"one of {', '.join(process.name for process in processes)} leads", look)
    assert found is not None
    return found


async def replace_pod(training: Training) -> str:
    """Delete a pod of the job. Returns once the operator has created another one."""
    before = {pod["metadata"]["uid"] for pod in await training.until_pods(3)}
    (lost, *_) = await training.pods()
    name = lost["metadata"]["name"]
    await training.kube.call("DELETE", f"pods/{name}", {"gracePeriodSeconds": 0})

    async def look() -> str:
        uids = [pod["metadata"]["uid"] for pod in await training.pods()]
        new = [uid for uid in uids if uid not in before]
        return new[0] if len(uids) == 3 and new else ""

    return await training.kube.until(f"pod {name} of {training.kube.namespace} is replaced", look)


async def test_a_killed_leader_of_a_shard_is_replaced_by_its_standby_and_the_other_shard_continues(
    shards: Shards, first: Training, second: Training
):
    # given two shards with two replicas each, and a job in a namespace of each shard
    of_first = [shards.start(f"shard-0-{replica}", "0/2") for replica in "ab"]
    of_second = [shards.start(f"shard-1-{replica}", "1/2") for replica in "ab"]
    killed = await until_leader(first.kube, *of_first)
    other = await until_leader(second.kube, *of_second)
    (standby,) = [process for process in of_first if process is not killed]
    await has_role(first.kube, standby, "standby")
    for training in (first, second):
        await training.apply()
        await training.until_pods(3)
    # then each leader has written only in its own namespace
    assert (shards.writers(FIRST), shards.writers(SECOND)) == ([killed.name], [other.name])

    # when the leader of one shard is killed
    killed.kill()
    killed_at = time.monotonic()

    # then the other shard replaces a pod while the killed one has no leader
    await replace_pod(second)
    assert await health(standby, "/readyz") == (200, "standby")
    assert time.monotonic() - killed_at < FAILOVER_S

    # and the standby replica of the killed one replaces a pod once the Lease has expired
    await replace_pod(first)
    assert time.monotonic() - killed_at <= FAILOVER_S + SLOW_S
    assert shards.writers(FIRST) == [killed.name, standby.name]
    assert shards.writers(SECOND) == [other.name]


async def test_a_change_from_one_shard_to_two_never_gives_a_namespace_two_writers(
    shards: Shards, first: Training, second: Training
):
    # given one shard with two replicas, and jobs in two namespaces
    old = [shards.start(f"old-{replica}") for replica in "ab"]
    leader = await until_leader(first.kube, *old)
    (standby,) = [process for process in old if process is not leader]
    await has_role(first.kube, standby, "standby")
    for training in (first, second):
        await training.apply()
        await training.until_pods(3)

    # when the two shards of the new layout start, then they wait while a replica of the old one leads
    new = [shards.start("new-0", "0/2"), shards.start("new-1", "1/2")]
    for process in new:
        await has_role(first.kube, process, "standby")
        await has_logged(first.kube, process, "delete the Deployment understudy-operator")
    for training in (first, second):
        await replace_pod(training)
    assert (shards.writers(FIRST), shards.writers(SECOND)) == ([leader.name], [leader.name])

    # when the old replicas are stopped, one after the other, while the jobs lose pods
    leader.stop()
    standby.stop()
    await asyncio.gather(replace_pod(first), replace_pod(second))

    # then each new shard is the leader of its own namespace
    assert [await health(process, "/readyz") for process in new] == [(200, "leader"), (200, "leader")]
    for namespace, owner in ((FIRST, "new-0"), (SECOND, "new-1")):
        writers = shards.writers(namespace)
        # and no process has written again after another one had taken over
        assert len(writers) == len(set(writers)), writers
        assert (writers[0], writers[-1]) == (leader.name, owner)
        assert not {"new-0", "new-1"} - {owner} & set(writers)


async def test_a_change_from_two_shards_to_one_waits_until_the_lease_of_a_frozen_shard_has_expired(
    shards: Shards, first: Training, second: Training
):
    # given two shards with a job each, and the single shard of the next layout
    old = [shards.start("old-0", "0/2"), shards.start("old-1", "1/2")]
    for process in old:
        await has_role(first.kube, process, "leader")
    for training in (first, second):
        await training.apply()
        await training.until_pods(3)
    new = shards.start("new")
    await has_role(first.kube, new, "standby")

    # when one of the old ones stops cleanly, and the other one is frozen
    old[0].stop()
    old[1].freeze()
    frozen_at = time.monotonic()

    # then the new one leads once the Lease of the frozen one has expired
    await has_role(first.kube, new, "leader")
    assert FAILOVER_S - 3.0 <= time.monotonic() - frozen_at <= FAILOVER_S + SLOW_S
    for training in (first, second):
        await replace_pod(training)

    # and no later leader waits for that Lease again
    lease = await first.kube.call("GET", f"{LEASES}/understudy-operator-1-of-2")
    assert not lease["spec"].get("holderIdentity")

    # and the old one does nothing when it thaws
    old[1].thaw()
    await has_role(second.kube, old[1], "standby")
    await replace_pod(second)
    assert (shards.writers(FIRST), shards.writers(SECOND)) == (["old-0", "new"], ["old-1", "new"])

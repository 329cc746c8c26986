"""A cluster for one command: etcd, API server, controller manager, scheduler, and kwok with its nodes.

The programs are those of tests/cluster. JobSet's CRD is installed next to ours, so both systems have the same cluster.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml

from benchmarks.child import CHECKOUT, ChildFailed
from benchmarks.operator import settings
from benchmarks.operator.jobset_build import Built
from benchmarks.operator.kube import Kube, Refused
from benchmarks.operator.manifests import Raw, node, waiting_pod
from benchmarks.operator.programs import Program
from benchmarks.operator.settings import Files
from tests.cluster.commands import Progress, run
from tests.cluster.host_tools import tool

#: Pods of the warm-up: the API server's buffers follow the number of events in the last 75 s.
WARM_UP_PODS = 4000
START_S = 120.0
NODE_S = 0.05
POLL_S = 0.1
AT_ONCE = 32

T = TypeVar("T")


@dataclass(frozen=True)
class Cluster:
    files: Files
    kube: Kube
    api_server: Program
    controller_manager: Program
    others: tuple[Program, ...]

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.api_server, self.controller_manager, *self.others)

    async def namespace(self, name: str) -> None:
        """Create a namespace, and wait for its service account, which pods need."""
        await self.kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        await until(f"{account} is there", lambda: self.kube.exists(account), self.programs)

    async def warm_up(self) -> None:
        """Create and delete pods that get no node. Otherwise the API server's buffers for pod events are small in the
        first session: it closes the watches of the other programs, which start again, and the pods of this session
        take 1.4 times as long as the same pods later.
        """
        name = "bench-warm-up"
        await self.namespace(name)
        path, pod = f"/api/v1/namespaces/{name}/pods", waiting_pod()
        await in_parallel(lambda _: self.kube.call("POST", path, pod), range(WARM_UP_PODS))
        await self.remove_namespace(name)

    async def remove_namespace(self, name: str) -> None:
        """Delete it with all of its objects, so that they do not disturb the next session."""
        path = f"/api/v1/namespaces/{name}"
        await self.kube.call("DELETE", path)

        async def gone() -> bool:
            return not await self.kube.exists(path)

        await until(f"{path} is gone", gone, self.programs, limit_s=600.0)


async def until(
    description: str, holds: Callable[[], Awaitable[bool]], programs: tuple[Program, ...], limit_s: float = START_S
) -> None:
    deadline = time.monotonic() + limit_s
    while not await holds():
        for program in programs:
            program.check()
        if time.monotonic() > deadline:
            raise ChildFailed(f"{description}: not within {limit_s:.0f} s")
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def running(
    binaries: Path,
    jobset: Built | None,
    nodes: int,
    progress: Progress,
    *,
    shipped: bool,
    etcd_bytes: int = settings.ETCD_BYTES,
    kwok: Callable[[Files], list[str]] = settings.kwok,
    make_node: Callable[[int], Raw] = node,
) -> AsyncIterator[Cluster]:
    """shipped: with the controller manager's own limits. kwok: its command. make_node: the manifest of a node.

    If a program does not start, raises ChildFailed with the end of its log.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="understudy-bench-")))
        files = Files(folder, binaries)
        files.write()
        key = folder / "service-accounts.key"
        run([tool("openssl"), "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key])

        def start(name: str, command: list[str]) -> Program:
            return stack.enter_context(Program(name, command))

        # Each is ready before the next starts, and the API server is killed before its etcd. Otherwise they hang.
        etcd = start("etcd", settings.etcd(files, etcd_bytes))
        await until("etcd is healthy", lambda: answers(f"{settings.ETCD}/health"), (etcd,))
        api_server = start("kube-apiserver", settings.api_server(files))
        await until("the API server's certificate", lambda: _exists(files.certificate), (api_server,))
        async with Kube(files) as kube:
            await until("the API server is ready", lambda: _ready(kube), (api_server,))
            for file in sorted((CHECKOUT / "crds").glob("*.yaml")):
                await _install(kube, file, api_server)
            if jobset is not None:
                await _install(kube, jobset.crd, api_server)
            progress.report("API server ready")
            controller_manager = start("controller-manager", settings.controller_manager(files, shipped=shipped))
            others = (start("scheduler", settings.scheduler(files)), start("kwok", kwok(files)), etcd)
            cluster = Cluster(files, kube, api_server, controller_manager, others)
            await _add_nodes(cluster, nodes, make_node)
            progress.report(f"{nodes} nodes ready")
            yield cluster


async def answers(url: str) -> bool:
    """Whether a GET of the URL returns 200."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _exists(file: Path) -> bool:
    return await asyncio.to_thread(file.exists)


async def _ready(kube: Kube) -> bool:
    try:
        return await kube.text("/readyz") == "ok" and await kube.exists("/api/v1/namespaces/default")
    except (aiohttp.ClientError, Refused, TimeoutError):
        return False


async def _install(kube: Kube, file: Path, api_server: Program) -> None:
    """Create a CRD, and wait until it is served."""
    crd = yaml.safe_load(await asyncio.to_thread(file.read_text))
    await kube.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    spec = crd["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    await until(f"{path} is served", lambda: kube.exists(path), (api_server,))


async def _add_nodes(cluster: Cluster, count: int, make: Callable[[int], Raw]) -> None:
    await in_parallel(lambda number: cluster.kube.call("POST", "/api/v1/nodes", make(number)), range(count))

    async def all_ready() -> bool:
        items = (await cluster.kube.call("GET", "/api/v1/nodes"))["items"]
        # A node is created with a taint, which the controller manager removes once it has seen that it is ready.
        return sum(_node_ready(item) for item in items) == count

    await until("all nodes are ready", all_ready, cluster.programs, START_S + NODE_S * count)


def _node_ready(raw: dict[str, Any]) -> bool:
    conditions = {x["type"]: x["status"] for x in raw["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and not raw["spec"].get("taints")


async def in_parallel(do: Callable[[T], Awaitable[object]], items: Iterable[T]) -> None:
    """Call `do` for each item, a few at a time. Raises the first failure."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> None:
        async with places:
            await do(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for item in items:
                tasks.create_task(one(item))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None

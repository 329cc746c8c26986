"""Two replicas of the real operator, and which one leads according to their common Lease."""

import aiohttp

from tests.integration.operator.kube import Kube
from tests.integration.operator.process import LEASE, OperatorProcess

LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}".format(*LEASE.split("/"))


class Replicas:
    """Both replicas, as one operator for callers that check whether it runs."""

    def __init__(self, processes: list[OperatorProcess]) -> None:
        self.processes = processes

    @property
    def runs(self) -> bool:
        return any(process.runs for process in self.processes)

    def log(self) -> str:
        return "\n".join(f"{process.name}: {process.log()}" for process in self.processes)

    def named(self, name: str) -> OperatorProcess:
        return next(process for process in self.processes if process.name == name)


async def health(process: OperatorProcess, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://127.0.0.1:{process.health_port}{path}") as answer:
                return answer.status, (await answer.text()).strip()
        except aiohttp.ClientError as error:
            return 0, repr(error)


async def all_ready(replicas: Replicas) -> bool:
    return all([(await health(process, "/readyz"))[0] == 200 for process in replicas.processes])


async def leader(kube: Kube, other_than: str = "") -> str:
    """The name of the holder of the Lease."""

    async def look() -> str:
        holder: str = (await kube.call("GET", LEASE_PATH))["spec"].get("holderIdentity") or ""
        name = holder.rpartition("_")[0]
        return name if name.startswith("replica-") and name != other_than else ""

    return await kube.until("a replica leads", look)

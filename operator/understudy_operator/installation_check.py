"""Check an installation: `python -m understudy_operator.installation_check`, which `helm test` runs in its own pod.

The check uses only the API server: our kinds are served, each Deployment has an available replica, one replica of each
shard leads, and a TrainingJob is accepted (a dry run: nothing is created). It retries for LIMIT_S, because the chart
may have been installed a moment ago. Then it logs each problem with its fix, and exits with code 1.

UNDERSTUDY_NAMESPACE is the namespace of the installation. UNDERSTUDY_JOBS_NAMESPACE is a namespace that the operator
watches, for the dry run. UNDERSTUDY_DEPLOYMENTS has the names of the Deployments, separated by commas.
UNDERSTUDY_LEASES has the names of the Leases of the operator's shards, separated by commas.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kubernetes.aio import client, config

from understudy_operator.plan.facts.ownership import API_VERSION, KIND
from understudy_operator.runtime.api import API_FAILURES, Api, ApiError

LIMIT_S = 60.0
EVERY_S = 1.0
PLURALS = ("trainingjobs", "hotsparepools", "injectedjobs", "recoveries")
log = logging.getLogger(__name__)


def example(namespace: str) -> dict[str, Any]:
    """A small job with spares."""
    trainer = {"name": "trainer", "image": "example.com/trainer:1", "command": ["python3", "train.py"]}
    template = {"spec": {"parallelism": 2, "completions": 2, "template": {"spec": {"containers": [trainer]}}}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "understudy-test", "namespace": namespace},
        "spec": {
            "launcher": {"nprocPerNode": 1},
            "spares": {"replicas": 1},
            "replicatedJobs": [{"name": "trainer", "template": template}],
        },
    }


class InstallationCheck:
    """jobs_namespace: a namespace that the operator watches."""

    def __init__(
        self, api: Api, namespace: str, jobs_namespace: str, deployments: Sequence[str], leases: Sequence[str]
    ) -> None:
        self._api, self._namespace, self._deployments, self._leases = api, namespace, deployments, leases
        self._jobs_namespace = jobs_namespace
        self._renewed: dict[str, object] = {}  # the renewTime of each Lease at the first read

    async def run(self, limit_s: float, every_s: float = EVERY_S) -> list[str]:
        """The problems that are left at the end."""
        wrong = await self.find_problems()
        try:
            async with asyncio.timeout(limit_s):
                while wrong:
                    await asyncio.sleep(every_s)
                    wrong = await self.find_problems()
        except TimeoutError:
            pass
        return wrong

    async def find_problems(self) -> list[str]:
        """The current problems. A request that fails is a problem, too."""
        checks = [self._kinds(), self._acceptance(), *map(self._leader, self._leases)]
        checks += map(self._deployment, self._deployments)
        found = await asyncio.gather(*checks, return_exceptions=True)
        wrong = []
        for result in found:
            if isinstance(result, BaseException) and not isinstance(result, API_FAILURES):
                raise result
            if result:
                wrong.append(str(result))
        return wrong

    async def _kinds(self) -> str:
        resources: Mapping[str, Any] = {}
        try:
            resources = await self._api.get(f"/apis/{API_VERSION}")
        except ApiError as error:
            if error.status != 404:
                raise
        served = {resource["name"] for resource in resources.get("resources", ())}
        missing = [plural for plural in PLURALS if plural not in served]
        return f"the API server does not serve {', '.join(missing)}: apply the CRDs (crds.enabled)" if missing else ""

    async def _deployment(self, name: str) -> str:
        path = f"/apis/apps/v1/namespaces/{self._namespace}/deployments/{name}"
        status = (await self._api.get(path)).get("status", {})
        if status.get("availableReplicas", 0) > 0:
            return ""
        return f"no replica of Deployment {name} is available: run kubectl --namespace {self._namespace} get pods"

    async def _leader(self, name: str) -> str:
        """Compare two reads of the Lease, so no clocks are compared."""
        problem = f"no replica renews Lease {name}: see the operator's log"
        try:
            lease = await self._api.get(f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return problem
        renewed = lease.get("spec", {}).get("renewTime")
        first = self._renewed.setdefault(name, renewed)
        return problem if renewed == first else ""

    async def _acceptance(self) -> str:
        path = f"/apis/{API_VERSION}/namespaces/{self._jobs_namespace}/trainingjobs"
        try:
            await self._api.dry_run(path, example(self._jobs_namespace))
        except ApiError as error:
            return f"the API server rejects a TrainingJob ({error.status}): {error}"
        return ""


async def _main(env: Mapping[str, str]) -> int:
    await config.load_config()  # type: ignore[no-untyped-call]
    async with client.ApiClient() as api_client:
        check = InstallationCheck(
            Api(api_client),
            env["UNDERSTUDY_NAMESPACE"],
            env["UNDERSTUDY_JOBS_NAMESPACE"],
            env["UNDERSTUDY_DEPLOYMENTS"].split(","),
            env["UNDERSTUDY_LEASES"].split(","),
        )
        wrong = await check.run(LIMIT_S)
    for text in wrong:
        log.error("%s", text)
    if not wrong:
        log.info(
            "the kinds are served, a replica of each Deployment is available, each shard has a leader, and a job is "
            "accepted"
        )
    return 1 if wrong else 0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    return asyncio.run(_main(os.environ))


if __name__ == "__main__":
    sys.exit(main())

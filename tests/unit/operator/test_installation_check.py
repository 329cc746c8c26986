"""The messages of `helm test` about an installation."""

from typing import Any

import pytest

from tests.unit.operator.fake_api import FakeApi
from understudy_operator.installation_check import PLURALS, InstallationCheck, example
from understudy_operator.observe.read import read_job

KINDS = "/apis/understudy.dev/v1alpha1"
DEPLOYMENT = "/apis/apps/v1/namespaces/system/deployments/{}"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/system/leases/operator"
JOBS = f"{KINDS}/namespaces/team/trainingjobs"


class Installation:
    """An installation that works: its Lease is renewed between any two reads."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.api.put(KINDS, {"metadata": {}, "resources": [{"name": plural} for plural in PLURALS]})
        for name in ("operator", "webhook"):
            self.api.put(DEPLOYMENT.format(name), {"metadata": {}, "status": {"availableReplicas": 1}})
        self.renew(1)
        self.check = InstallationCheck(self.api, "system", "team", ["operator", "webhook"], ["operator"])

    def renew(self, at: int) -> None:
        self.api.put(LEASE, {"metadata": {}, "spec": {"renewTime": at}})

    async def wrong(self) -> list[str]:
        await self.check.find_problems()
        self.renew(2)
        return await self.check.find_problems()


@pytest.fixture
def installation() -> Installation:
    return Installation()


async def test_a_complete_installation_has_no_errors(installation: Installation) -> None:
    assert await installation.wrong() == []
    # and the check wrote nothing
    assert {method for method, _ in installation.api.calls} == {"GET", "CHECK"}


async def test_a_lease_that_is_not_renewed_is_reported_as_no_leader(installation: Installation) -> None:
    await installation.check.find_problems()
    assert await installation.check.find_problems() == ["no replica renews Lease operator: see the operator's log"]


async def test_each_shard_needs_a_leader(installation: Installation) -> None:
    # given two shards, of which only the first one renews its Lease
    names = [f"operator-{index}-of-2" for index in range(2)]
    leases = [LEASE.replace("/operator", f"/{name}") for name in names]
    for lease in leases:
        installation.api.put(lease, {"metadata": {}, "spec": {"renewTime": 1}})
    check = InstallationCheck(installation.api, "system", "team", ["operator", "webhook"], names)
    await check.find_problems()
    installation.api.put(leases[0], {"metadata": {}, "spec": {"renewTime": 2}})
    assert await check.find_problems() == ["no replica renews Lease operator-1-of-2: see the operator's log"]


@pytest.mark.parametrize(
    ("path", "result"),
    [
        (KINDS, "the API server does not serve trainingjobs, hotsparepools, injectedjobs, recoveries: apply the CRDs"),
        (LEASE, "no replica renews Lease operator"),
        (DEPLOYMENT.format("webhook"), "not found"),
    ],
)
async def test_missing_objects_are_reported(installation: Installation, path: str, result: str) -> None:
    del installation.api.objects[path]
    (wrong,) = await installation.check.find_problems() if path == LEASE else await installation.wrong()
    assert result in wrong


async def test_a_deployment_without_an_available_replica_is_reported(installation: Installation) -> None:
    installation.api.put(DEPLOYMENT.format("operator"), {"metadata": {}, "status": {}})
    (wrong,) = await installation.wrong()
    assert "no replica of Deployment operator is available: run kubectl --namespace system get pods" in wrong


async def test_a_rejected_job_is_reported_with_the_api_servers_message(installation: Installation) -> None:
    installation.api.refuse = lambda _: "spec.spares: Invalid value"
    (wrong,) = await installation.wrong()
    assert wrong == "the API server rejects a TrainingJob (422): spec.spares: Invalid value"


async def test_the_check_waits_until_the_installation_is_complete_and_no_longer(installation: Installation) -> None:
    installation.api.put(DEPLOYMENT.format("operator"), {"metadata": {}, "status": {}})
    reads = 0

    def comes(_: Any) -> str:
        nonlocal reads
        reads += 1
        if reads == 3:
            installation.api.put(DEPLOYMENT.format("operator"), {"metadata": {}, "status": {"availableReplicas": 1}})
            installation.renew(2)
        return ""

    installation.api.refuse = comes
    assert await installation.check.run(limit_s=10.0, every_s=0.0) == []
    assert reads <= 4
    installation.api.refuse = lambda _: "no"
    assert len(await installation.check.run(limit_s=0.01, every_s=0.001)) == 1


def test_the_example_has_a_world_and_a_spare() -> None:
    made = {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-20T10:00:00Z"}
    job = read_job({**example("system"), "metadata": {**example("system")["metadata"], **made}})
    assert (job.world.actives, job.world.spares) == (2, 1)

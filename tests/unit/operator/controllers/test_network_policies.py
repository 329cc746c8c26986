"""The jobs' NetworkPolicies, which the leader maintains."""

import time
from typing import Any

import pytest

from tests.unit.operator.fake_api import CREATED, FakeApi
from tests.unit.operator.given import TEMPLATE
from understudy_operator.apply.pace import Pace
from understudy_operator.controllers import network_policies
from understudy_operator.controllers.network_policies import NetworkPolicies
from understudy_operator.observe.store import Kind, Store
from understudy_operator.runtime.api import ApiError, Keep, ObjectList
from understudy_operator.runtime.clock import Clock
from understudy_operator.settings import read_network_rules

GROUP = "/apis/networking.k8s.io/v1"

PATH = f"{GROUP}/namespaces/research/networkpolicies/llm-members"


class Server(FakeApi):
    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        self.calls.append(("LIST", path))
        kept = (keep(raw) for raw in self.of_kind("NetworkPolicy") if raw["metadata"].get("labels"))
        return ObjectList([raw for raw in kept if raw is not None], "1")


class Leader:
    def __init__(self, api: Server | None = None, namespaces: tuple[str, ...] = ()) -> None:
        self.api, self.store = Server() if api is None else api, Store()
        self._late_s = 0.0
        clock = Clock(steady=lambda: time.monotonic() + self._late_s)
        self.policies = NetworkPolicies(self.api, (), self.store, clock, Pace(time.monotonic), namespaces)

    def later(self, seconds: float) -> None:
        self._late_s += seconds

    def apply(self, name: str = "llm", version: str = "1", namespace: str = "research") -> None:
        replicated = {"name": "workers", "template": {"spec": {"parallelism": 2, "template": TEMPLATE}}}
        uid = f"uid-{name}" if namespace == "research" else f"uid-{namespace}-{name}"
        metadata = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": version}
        spec = {"replicatedJobs": [replicated], "launcher": {"nprocPerNode": 1}}
        self.store.put(Kind.JOB, {"metadata": metadata | {"creationTimestamp": CREATED}, "spec": spec})

    async def calls(self) -> list[str]:
        """The requests to the API server in one run."""
        self.api.calls.clear()
        await self.policies.run_once()
        return [method for method, _ in self.api.calls]


@pytest.fixture
def leader() -> Leader:
    return Leader()


async def test_a_job_gets_one_policy_and_no_request_follows_without_a_change(leader: Leader) -> None:
    leader.apply()
    assert await leader.calls() == ["LIST", "POST"]
    assert leader.api.objects[PATH]["spec"]["policyTypes"] == ["Ingress"]
    assert await leader.calls() == []
    leader.apply(version="2")
    leader.apply("other")
    assert await leader.calls() == ["POST"]


async def test_a_policy_that_was_deleted_or_changed_by_hand_is_restored_at_the_next_list(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_policies, "LIST_S", 0.0)
    leader.apply()
    await leader.policies.run_once()
    wanted = leader.api.objects[PATH]["spec"]
    leader.api.objects[PATH]["spec"] = {**wanted, "ingress": [{}]}
    assert await leader.calls() == ["LIST", "PUT"]
    assert leader.api.objects[PATH]["spec"] == wanted
    del leader.api.objects[PATH]
    assert await leader.calls() == ["LIST", "POST"]
    assert await leader.calls() == ["LIST"]


async def test_the_policy_of_a_deleted_job_of_the_same_name_delays_the_new_one(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a policy that was created after the list
    assert await leader.calls() == ["LIST"]
    metadata = {"namespace": "research", "name": "llm-members", "labels": {"understudy.dev/job-uid": "previous"}}
    leader.api.put(PATH, {"kind": "NetworkPolicy", "metadata": metadata, "spec": {}})
    # when a policy of another job has its name
    leader.apply()
    assert await leader.calls() == ["POST"]
    # then the leader leaves that policy alone, and does not request it again
    assert await leader.calls() == []
    monkeypatch.setattr(network_policies, "LIST_S", 0.0)
    assert await leader.calls() == ["LIST"]
    # until that policy is gone
    del leader.api.objects[PATH]
    assert await leader.calls() == ["LIST", "POST"]


@pytest.mark.attack(
    "A1", "has its job's NetworkPolicy refused, as by a quota", before="no job after it in the list got a policy"
)
async def test_a_rejected_policy_does_not_block_the_policy_of_another_job(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a job whose policy the API server rejects, and another job
    leader.api.refuse = lambda body: "exceeded quota" if body["metadata"]["name"] == "a-members" else ""
    leader.apply("a")
    leader.apply("b")
    # when the leader runs, then the other job has its policy
    assert await leader.calls() == ["LIST", "POST", "POST"]
    assert f"{GROUP}/namespaces/research/networkpolicies/b-members" in leader.api.objects
    # and the leader sends the first policy again with the next list, and not before
    assert await leader.calls() == []
    monkeypatch.setattr(network_policies, "LIST_S", 0.0)
    leader.api.refuse = lambda _: ""
    assert await leader.calls() == ["LIST", "POST"]


@pytest.mark.attack(
    "A1", "creates a NetworkPolicy under the name of a job's", before="the job had none of its own, without a report"
)
@pytest.mark.parametrize("labels", [{}, {"understudy.dev/job-uid": "uid-llm"}], ids=["without labels", "with ours"])
async def test_a_policy_of_another_owner_under_the_name_of_a_jobs_is_reported_on_the_job(
    labels: dict[str, str], leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a policy that admits all pods, under the name of a job's policy
    monkeypatch.setattr(network_policies, "LIST_S", 0.0)
    metadata = {"namespace": "research", "name": "llm-members", "labels": labels}
    leader.api.put(PATH, {"kind": "NetworkPolicy", "metadata": metadata, "spec": {"ingress": [{}]}})
    leader.apply()
    # when the leader has listed the policies twice
    for _ in range(5):
        await leader.policies.run_once()
    # then one event on the job reports that it has no policy, and what to do
    (event,) = leader.api.of_kind("Event")
    assert event["regarding"]["name"] == "llm"
    assert event["regarding"]["namespace"] == "research"
    assert event["reason"] == "NetworkPolicyConflict"
    assert "NetworkPolicy llm-members does not belong to this TrainingJob" in event["note"]
    # and the job has its policy once the other one is gone
    del leader.api.objects[PATH]
    await leader.policies.run_once()
    assert leader.api.objects[PATH]["spec"]["policyTypes"] == ["Ingress"]


def test_the_rules_are_those_of_the_chart() -> None:
    assert read_network_rules({}) is None
    result = '[{"from": [{"podSelector": {}}]}]'
    assert read_network_rules({"UNDERSTUDY_NETWORK_POLICIES": result}) == ({"from": [{"podSelector": {}}]},)


async def in_namespaces(leader: Leader) -> None:
    """One job in each of two namespaces; the tenant's job is the first."""
    for namespace in ("a-tenant", "research"):
        leader.apply(namespace=namespace)


@pytest.mark.attack(
    "A1", "has an admission webhook in its namespace that does not answer", before="no job after it got a policy"
)
async def test_a_namespace_in_which_writes_fail_does_not_block_policies_of_another_one(leader: Leader) -> None:
    # given a namespace in which the API server answers 500 to each write
    failed = ApiError(500, "InternalError", "failed calling webhook: connection refused")
    leader.api.deny = lambda _, path: failed if "/a-tenant/" in path else None
    await in_namespaces(leader)
    # when the leader runs, then the job of the other namespace has its policy
    assert await leader.calls() == ["LIST", "POST", "POST"]
    assert PATH in leader.api.objects
    # and the leader sends the failed policy again in 5 s
    assert await leader.calls() == []
    leader.later(5.0)
    assert await leader.calls() == ["POST"]
    leader.api.deny = lambda *_: None
    leader.later(5.0)
    assert await leader.calls() == ["POST"]
    assert PATH.replace("research", "a-tenant") in leader.api.objects


@pytest.mark.attack(
    "A1", "has events fail in its namespace", before="all policies were listed each second, and others had no event"
)
async def test_an_event_that_fails_does_not_block_the_event_of_another_job(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two jobs whose policies' names are taken, and a namespace in which no event can be written
    monkeypatch.setattr(network_policies, "LIST_S", 0.0)
    failed = ApiError(500, "InternalError", "failed calling webhook: connection refused")
    leader.api.deny = lambda _, path: failed if "/a-tenant/events" in path else None
    for namespace in ("a-tenant", "research"):
        path = PATH.replace("research", namespace)
        metadata = {"namespace": namespace, "name": "llm-members", "labels": {"understudy.dev/job-uid": "x"}}
        leader.api.put(path, {"kind": "NetworkPolicy", "metadata": metadata, "spec": {"ingress": [{}]}})
    await in_namespaces(leader)
    # when the leader has listed the policies twice, then the other job has its event, and no error ends the run
    for _ in range(3):
        await leader.policies.run_once()
    assert [event["metadata"]["namespace"] for event in leader.api.of_kind("Event")] == ["research"]


@pytest.mark.parametrize("text", ["{", "{}", "[1]", "[{}]", '[{"from": []}]'])
def test_rules_that_are_meaningless_or_admit_all_pods_are_rejected(text: str) -> None:
    env: dict[str, Any] = {"UNDERSTUDY_NETWORK_POLICIES": text}
    with pytest.raises(ValueError, match=r"UNDERSTUDY_NETWORK_POLICIES is .*set it to a JSON list of ingress rules"):
        read_network_rules(env)


async def test_a_watched_namespace_whose_policies_may_not_be_listed_delays_no_other_one() -> None:
    class Forbidden(Server):
        async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
            if "/namespaces/other/" in path:
                raise ApiError(403, "Forbidden", "networkpolicies is forbidden")
            return await super().list(path, selector)

    # given two watched namespaces, one of which is forbidden
    leader = Leader(Forbidden(), ("other", "research"))
    leader.apply()
    # when the leader runs
    assert await leader.calls() == ["LIST", "POST"]
    # then the job of the other namespace has its policy, and the leader listed only watched namespaces
    assert leader.api.objects[PATH]["spec"]["policyTypes"] == ["Ingress"]
    assert leader.api.calls[0] == ("LIST", f"{GROUP}/namespaces/research/networkpolicies")

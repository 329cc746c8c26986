"""The list of the jobs' NetworkPolicies."""

from tests.unit.operator.fake_api import FakeApi
from understudy_operator.observe.network_policies import PolicyList
from understudy_operator.plan.leadership.shard import Shard

PATH = "/apis/networking.k8s.io/v1/networkpolicies"


async def test_a_shard_keeps_the_policies_of_its_own_namespaces() -> None:
    # given policies in two namespaces: team-a is of shard 0 of 2, team-c of shard 1
    api = FakeApi()
    for namespace in ("team-a", "team-c"):
        labels = {"understudy.dev/job-uid": ""}
        api.put(f"{PATH}/{namespace}", {"metadata": {"namespace": namespace, "name": "llm-members", "labels": labels}})
    # then each shard keeps one of them, and a single shard keeps both
    assert set(await PolicyList(api, (), Shard(0, 2)).list()) == {("team-a", "llm-members")}
    assert set(await PolicyList(api, (), Shard(1, 2)).list()) == {("team-c", "llm-members")}
    assert set(await PolicyList(api, ()).list()) == {("team-a", "llm-members"), ("team-c", "llm-members")}

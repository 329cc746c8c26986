"""The chart's settings of the Lease: read at the start, and rejected with a message that states the fix."""

import pytest

from understudy_operator.plan.leadership.lease_election import LeaseTimes
from understudy_operator.plan.leadership.shard import Shard
from understudy_operator.settings import LeaseSettings, read_lease_settings


def test_the_name_and_the_times_of_the_lease_are_read():
    env = {"UNDERSTUDY_LEASE": "system/operator", "UNDERSTUDY_LEASE_TIMES": "60,40,5"}
    assert read_lease_settings(env) == LeaseSettings(("system", "operator"), LeaseTimes(60.0, 40.0, 5.0))
    assert read_lease_settings({}) == LeaseSettings(None, LeaseTimes(15.0, 10.0, 2.0))


@pytest.mark.parametrize(
    ("times", "result"),
    [
        ("15,10", "set it to lease duration, renew deadline and retry period in whole seconds, such as 15,10,2"),
        ("15,10,x", "in whole seconds"),
        ("15,10,-2", "in whole seconds"),
        ("1000000,10,2", "in whole seconds"),
        ("10,10,2", "the lease duration has to be longer than the renew deadline"),
        ("15,10,3", "at least four times the retry period"),
        ("15,10,0", "the retry period at least 1"),
    ],
)
def test_times_that_cannot_work_are_refused(times: str, result: str):
    with pytest.raises(ValueError, match=result):
        read_lease_settings({"UNDERSTUDY_LEASE_TIMES": times})


def test_a_lease_without_a_namespace_is_refused():
    with pytest.raises(ValueError, match="set it to a Lease, as namespace/name"):
        read_lease_settings({"UNDERSTUDY_LEASE": "operator"})


def test_the_shard_is_read_and_a_single_one_needs_no_setting():
    env = {"UNDERSTUDY_LEASE": "system/operator", "UNDERSTUDY_SHARD": "1/3"}
    assert read_lease_settings(env).shard == Shard(1, 3)
    assert read_lease_settings({}).shard == Shard(0, 1)


@pytest.mark.parametrize("shard", ["2", "2/2", "3/2", "-1/2", "0/9", "0/0", "a/2", "0/2/4"])
def test_a_shard_that_does_not_exist_is_rejected(shard: str):
    message = f"UNDERSTUDY_SHARD is '{shard}': set it to the number of the shard and the number of shards, such as 0/2"
    with pytest.raises(ValueError, match=message):
        read_lease_settings({"UNDERSTUDY_LEASE": "system/operator", "UNDERSTUDY_SHARD": shard})


def test_several_shards_need_a_lease():
    with pytest.raises(ValueError, match="UNDERSTUDY_SHARD is 0/2, and UNDERSTUDY_LEASE is not set: set it to the"):
        read_lease_settings({"UNDERSTUDY_SHARD": "0/2"})


def test_the_list_of_namespaces_is_read():
    env = {"UNDERSTUDY_LEASE": "a/b", "UNDERSTUDY_SHARD": "1/3", "UNDERSTUDY_SHARD_NAMESPACES": "team-a=0,team-b=2"}
    assert read_lease_settings(env).shard == Shard(1, 3, "team-a=0,team-b=2")


@pytest.mark.parametrize("entry", ["team-a", "team-a=", "team-a=2", "team-a=-1", "Team=0", "=0", ""])
def test_a_list_that_cannot_work_is_rejected(entry: str):
    env = {"UNDERSTUDY_LEASE": "a/b", "UNDERSTUDY_SHARD": "0/2", "UNDERSTUDY_SHARD_NAMESPACES": f"team-b=1,{entry}"}
    message = f"UNDERSTUDY_SHARD_NAMESPACES contains '{entry}': set it to namespaces with the number of a shard from 0"
    with pytest.raises(ValueError, match=message):
        read_lease_settings(env)

"""The chart's settings of the Lease: read at the start, and rejected with a message that states the fix."""

import pytest

from understudy_operator.plan.leadership.lease_election import LeaseTimes
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

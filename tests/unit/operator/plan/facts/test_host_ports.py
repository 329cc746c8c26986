"""The ports of pods with hostNetwork: a draw in the range, and the chart's value."""

import pytest

from understudy_operator.plan.facts.host_ports import HostPorts, declare_host_ports, read_host_ports

ENV = "UNDERSTUDY_HOST_NETWORK_PORTS"


def test_every_pod_draws_two_consecutive_ports_of_the_range():
    drawn = {HostPorts(24000, 24999).draw(f"job-uid/{n}") for n in range(10_000)}
    assert drawn == set(range(24000, 24999, 2))


def test_the_same_pod_draws_the_same_port():
    assert HostPorts().draw("job-uid/1") == HostPorts().draw("job-uid/1")


@pytest.mark.parametrize(("last", "ports"), [(24001, {24000}), (24002, {24000}), (24003, {24000, 24002})])
def test_a_small_range_is_not_exceeded(last: int, ports: set[int]):
    assert {HostPorts(24000, last).draw(str(n)) for n in range(100)} == ports


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", HostPorts(24000, 24999)), ("1024-1025", HostPorts(1024, 1025)), ("9000-65535", HostPorts(9000, 65535))],
)
def test_the_range_is_read(text: str, expected: HostPorts):
    assert read_host_ports({ENV: text}) == expected


@pytest.mark.parametrize("text", ["24000", "24000-", "24999-24000", "24000-24000", "1023-2000", "24000-65536", "a-b"])
def test_a_range_without_two_ports_is_rejected_with_the_fix(text: str):
    with pytest.raises(ValueError, match=f"{ENV} .chart: hostNetworkPorts. is '{text}': set it to FIRST-LAST, such as"):
        read_host_ports({ENV: text})


def test_the_users_ports_stay():
    trainer = {"name": "trainer", "ports": [{"containerPort": 29500}]}
    for _ in range(2):  # the second time changes nothing
        declare_host_ports(trainer, 24010)
        assert trainer["ports"] == [
            {"containerPort": 29500},
            {"name": "understudy", "containerPort": 24010},
            {"name": "understudy-http", "containerPort": 24011},
        ]

"""The addresses of sidecars, and those of callers that belong to one network."""

import pytest

from understudy_protocol.addresses import network_of, plain, split_port, with_port


@pytest.mark.parametrize(
    ("ip", "port", "address"),
    [
        ("10.0.0.1", 8478, "10.0.0.1"),
        ("10.0.0.1", 24002, "10.0.0.1:24002"),
        ("fd00::1", 8478, "fd00::1"),
        ("fd00::1", 24002, "[fd00::1]:24002"),
        ("fe80::1%eth0", 24002, "[fe80::1%eth0]:24002"),
    ],
)
def test_an_address_has_a_port_if_it_is_not_the_usual_one(ip: str, port: int, address: str) -> None:
    assert with_port(ip, port) == address
    assert split_port(address) == (ip, port)


def test_an_unknown_ip_has_no_address() -> None:
    assert with_port("", 24002) == ""


@pytest.mark.parametrize(
    "text", ["10.0.0.1:99999", "10.0.0.1:", ":24002", "[fd00::1]", "[]:1", "a b:c", "[fd00::1]:x", ""]
)
def test_text_that_is_no_address_is_returned_as_an_ip_which_nothing_connects_to(text: str) -> None:
    assert split_port(text) == (text, 8478)


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("fd00:0:0:1::5", "fd00:0:0:1:ffff:ffff:ffff:ffff", True),
        ("fd00:0:0:1::5", "fd00:0:0:2::5", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("a namespace", "another one", False),
        ("no:address", "no:address either", False),
    ],
)
def test_a_network_of_ipv6_is_a_64(one: str, other: str, together: bool) -> None:
    assert (network_of(one) == network_of(other)) is together


def test_an_ipv4_address_is_the_same_on_each_kind_of_socket() -> None:
    assert plain("::ffff:10.0.0.1") == "10.0.0.1"
    assert [plain(x) for x in ("10.0.0.1", "fd00::ffff:1", "::1", "")] == ["10.0.0.1", "fd00::ffff:1", "::1", ""]

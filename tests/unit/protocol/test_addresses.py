"""The addresses that belong to one network."""

import pytest

from understudy_protocol.addresses import network_of, plain


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

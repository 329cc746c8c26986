"""The proxy of the environment, as kubectl chooses it."""

import pytest

from understudy_cli.proxies import proxy_of

PROXY = {"HTTPS_PROXY": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("server", "excluded"),
    [
        ("https://10.96.0.1:443", "10.96.0.0/12"),
        ("https://10.96.0.1", "127.0.0.1, 10.0.0.0/8 ,.svc"),
        ("https://[fd00:10::1]:443", "fd00:10::/64"),
        ("https://10.96.0.1:6443", "10.96.0.1"),
        ("https://10.96.0.1:6443", "10.96.0.1:6443"),
        ("https://[fd00::1]:6443", "[fd00::1]:6443"),
        ("https://api.example.com:6443", "example.com"),
        ("https://example.com", "example.com"),
        ("https://example.com", "example.com:443"),
        ("https://API.Example.com", ".example.COM"),
        ("https://api.example.com", "*.example.com"),
        ("https://api.example.com", "*"),
    ],
)
def test_no_proxy_excludes_addresses_ranges_and_domains(server: str, excluded: str) -> None:
    assert proxy_of(server, PROXY) == "http://proxy:3128"
    assert proxy_of(server, PROXY | {"NO_PROXY": excluded}) == ""


@pytest.mark.parametrize(
    ("server", "excluded"),
    [
        ("https://11.0.0.1", "10.0.0.0/8"),
        ("https://10.96.0.1:6443", "10.96.0.1:443"),
        ("https://[fd00::1]", "10.0.0.0/8,10.0.0.0/99"),
        ("https://example.com", ".example.com"),
        ("https://notexample.com", "example.com"),
        ("https://example.com", ""),
    ],
)
def test_all_other_servers_have_the_proxy(server: str, excluded: str) -> None:
    assert proxy_of(server, PROXY | {"no_proxy": excluded}) == "http://proxy:3128"


@pytest.mark.parametrize("server", ["https://127.0.0.1:6443", "https://localhost:6443", "https://[::1]:6443"])
def test_a_server_on_this_machine_has_no_proxy(server: str) -> None:
    """As that of kind, minikube, or a tunnel."""
    assert proxy_of(server, PROXY) == ""


def test_a_proxy_without_a_scheme_is_one_for_http() -> None:
    assert proxy_of("https://api.example.com", {"https_proxy": "proxy:3128"}) == "http://proxy:3128"


def test_each_scheme_has_its_own_proxy() -> None:
    assert proxy_of("http://api.example.com", PROXY) == ""
    assert proxy_of("http://api.example.com", {"http_proxy": "http://other"}) == "http://other"

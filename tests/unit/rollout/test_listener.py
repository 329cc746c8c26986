"""The process that listens at a port: read from generated kernel tables, and from the real ones."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from understudy_rollout.gateway.listener import NOBODY, address_of, listener_at

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
HERE = ("127.0.0.1", 30000)


def entry(port: int, state: str, inode: int, address: str = "00000000") -> str:
    rest = f"00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0000 100 0 0 10 0"
    return f"   0: {address}:{port:04X} 00000000:0000 {state} {rest}\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    boot = tmp_path / "sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("boot\n")
    (tmp_path / "net/tcp").write_text(HEAD)
    (tmp_path / "net/tcp6").write_text(HEAD)
    return tmp_path


def test_a_listener_is_identified_by_its_socket_and_the_boot(proc: Path) -> None:
    (proc / "net/tcp").write_text(HEAD + entry(22, "0A", 7) + entry(30000, "0A", 81) + entry(30000, "01", 82))
    assert listener_at(HERE, proc) == "boot:81"
    # and at IPv6 addresses, and if several processes share a port
    (proc / "net/tcp6").write_text(HEAD + entry(30000, "0A", 80, "0" * 32))
    assert listener_at(HERE, proc) == "boot:80+81"


def test_connections_are_no_listeners(proc: Path) -> None:
    (proc / "net/tcp").write_text(HEAD + entry(22, "0A", 7) + entry(30000, "01", 82))
    assert listener_at(HERE, proc) == NOBODY


def test_a_kernel_without_ipv6_has_no_table_of_it(proc: Path) -> None:
    (proc / "net/tcp6").unlink()
    assert listener_at(HERE, proc) == NOBODY


@pytest.mark.parametrize("host", ["10.0.0.1", "rollout-0", "2001:db8::1"])
def test_the_listener_of_a_server_on_another_machine_is_unknown(proc: Path, host: str) -> None:
    assert listener_at((host, 30000), proc) is None


def test_the_listener_is_unknown_without_the_kernels_tables(tmp_path: Path) -> None:
    assert listener_at(HERE, tmp_path / "nowhere") is None


def test_a_process_that_listens_again_has_another_identity() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        address = first.getsockname()
        known = listener_at(address)
        assert known
        assert listener_at(address) == known
    assert listener_at(address) == NOBODY
    with socket.create_server(address):
        assert listener_at(address) not in (known, NOBODY)


def test_an_address_is_that_of_the_url() -> None:
    assert address_of("http://127.0.0.1:30000/") == ("127.0.0.1", 30000)
    assert address_of("https://engine") == ("engine", 443)
    with pytest.raises(ValueError, match="engine: expected http://host:port"):
        address_of("engine")

"""A node of a benchmark loses its power: its processes end, and its peers receive no packets."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time

import pytest

from benchmarks.rendezvous.network import HERE, further_address, nodes
from tests.unit.sidecar.silent_network import may_lay_cables

needs_root = pytest.mark.skipif(not may_lay_cables(), reason="no right to make a network namespace")
LIMIT_S = 20.0
_CALLS = """
import socket, sys, threading
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b"hello")
threading.Event().wait()
"""


#: Makes a node, and is killed.
_KILLED = """
import os, signal
from benchmarks.rendezvous.network import nodes
with nodes(1):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_root
def test_nodes_of_a_process_that_was_killed_disturb_no_later_ones() -> None:
    # given a bridge with the same address, which nobody uses any more
    killed = subprocess.run([sys.executable, "-c", _KILLED], check=False)
    assert killed.returncode == -9
    # then a new node reaches this machine
    with nodes(1) as (node,), socket.create_server((HERE, 0)) as server:
        connect = f"import socket; socket.create_connection({server.getsockname()!r}, {LIMIT_S})"
        subprocess.run([*node.inside, sys.executable, "-c", connect], check=True, timeout=LIMIT_S)


@needs_root
def test_a_power_off_ends_all_processes_and_sends_no_packet_to_their_peers() -> None:
    with nodes(1) as (node,), socket.create_server((HERE, 0)) as server:
        server.settimeout(LIMIT_S)
        # given a process on the node, which has a connection to this one
        command = [*node.inside, sys.executable, "-c", _CALLS, HERE, str(server.getsockname()[1])]
        with subprocess.Popen(command) as process:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(LIMIT_S)
                assert connection.recv(5) == b"hello"
                assert node.processes() == [process.pid]
                # when the node loses its power
                before = time.monotonic()
                at = node.power_off()
                after = time.monotonic()
                # then its process has ended, and the connection is neither closed nor reset
                assert before <= at <= after
                assert process.wait(LIMIT_S) == -9
                assert node.processes() == []
                assert select.select([connection], [], [], 0.5)[0] == []
        # and when its power is back, it reaches this one again
        node.plug_in_the_cable()
        connect = f"import socket; socket.create_connection({server.getsockname()!r}, {LIMIT_S})"
        subprocess.run([*node.inside, sys.executable, "-c", connect], check=True)


def test_a_process_that_is_killed_on_a_live_node_closes_its_connections() -> None:
    """The difference to a power-off: a benchmark by SIGKILL measures this case."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        command = [sys.executable, "-c", _CALLS, "127.0.0.1", str(server.getsockname()[1])]
        with subprocess.Popen(command) as process:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(LIMIT_S)
                assert connection.recv(5) == b"hello"
                process.kill()
                assert connection.recv(1) == b""


def test_addresses_end_with_the_subnet() -> None:
    assert further_address(0) == "198.19.255.100"
    assert further_address(154) == "198.19.255.254"
    with pytest.raises(ValueError, match="155 further addresses"):
        further_address(155)

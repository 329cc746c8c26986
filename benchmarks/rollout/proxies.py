"""The proxies in front of the servers: for each server a gateway, and an nginx that passes all requests through."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import CHECKOUT
from tests.cluster.paths import Paths
from tests.cluster.unit_tools import NGINX

START_S = 60.0
#: One process with one thread, as a gateway. Connections are kept open on both sides.
_NGINX = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream server {{ server 127.0.0.1:{server}; keepalive 512; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 1000000000;
        location / {{
            proxy_pass http://server;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Proxies:
    """One for each server."""

    pids: Sequence[int]
    ports: Sequence[int]

    def cpu_s(self) -> float:
        """The CPU time of all of them so far, in steps of nanoseconds: the ticks of Usage are too long for this."""
        files = (file for pid in self.pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9


@contextmanager
def gateways(servers: Sequence[int]) -> Iterator[Proxies]:
    """servers: their ports."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateways-")))
        token = folder / "token"
        token.write_text("secret")
        started = [stack.enter_context(_process(_gateway(folder, token, port))) for port in servers]
        yield Proxies([process.pid for process in started], [_port_of(process) for process in started])


def _gateway(folder: Path, token: Path, server: int) -> list[str]:
    command = [sys.executable, "-m", "understudy_rollout.gateway", "--engine", f"http://127.0.0.1:{server}"]
    command += ["--host", "127.0.0.1", "--port", "0", "--token-file", str(token)]
    return [*command, "--state-file", str(folder / f"{server}.json"), "--initial-version", "1"]


def _port_of(gateway: subprocess.Popen[str]) -> int:
    assert gateway.stderr is not None
    line = gateway.stderr.readline()
    found = re.search(r"listening on port (\d+)", line)
    if found is None:
        raise RuntimeError(f"the gateway did not start: {line}{gateway.stderr.read()}")
    return int(found[1])


@contextmanager
def nginxes(servers: Sequence[int]) -> Iterator[Proxies]:
    """servers: their ports."""
    program = NGINX.get(Paths.from_environment())
    with ExitStack() as stack:
        ports = _free_ports(len(servers))
        pids = []
        for server, port in zip(servers, ports, strict=True):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-nginx-")))
            config = folder / "nginx.conf"
            config.write_text(_NGINX.format(folder=folder, server=server, port=port))
            process = stack.enter_context(_process([program, "-p", str(folder), "-c", str(config)]))
            pids.append(process.pid)
        for port in ports:
            _await_listener(port)
        yield Proxies(pids, ports)


@contextmanager
def _process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    env = {"PYTHONPATH": str(CHECKOUT / "sidecar")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)
        process.stderr.close()


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(each.getsockname()[1]) for each in bound]


def _await_listener(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)

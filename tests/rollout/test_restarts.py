"""Gateway and server as processes that are killed: the weights that are admitted afterwards."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.child import CHECKOUT
from tests.e2e.waiting import wait_until
from tests.ports import free_port
from understudy_rollout.failures import AdmissionRefused
from understudy_rollout.gateway import Gateway

NO_FENCE = (0, 0, 0)

TOKEN = "secret"
SERVER = """
import sys
from aiohttp import web
async def answer(request): return web.Response(text=sys.argv[2])
app = web.Application()
app.router.add_route("*", "/{path:.*}", answer)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""


@dataclass
class Site:
    folder: Path
    ports: tuple[int, int]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_server(self, version: str) -> None:
        self.running["server"] = subprocess.Popen([sys.executable, "-c", SERVER, str(self.ports[0]), version])
        wait_until("the server listens", lambda: self._connects(0), 30, seen=lambda: "")

    def start_gateway(self) -> None:
        token = self.folder / "token"
        token.write_text(TOKEN)
        command = [sys.executable, "-m", "understudy_rollout.gateway", "--host", "127.0.0.1"]
        command += ["--engine", f"http://127.0.0.1:{self.ports[0]}", "--port", str(self.ports[1])]
        command += ["--token-file", str(token), "--state-file", str(self.folder / "weights.json")]
        command += ["--initial-version", "v0"]
        env = os.environ | {"PYTHONPATH": str(CHECKOUT / "sidecar")}
        self.running["gateway"] = subprocess.Popen(command, env=env)
        wait_until("the gateway listens", lambda: self._connects(1), 30, seen=lambda: "")

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def ask(self) -> tuple[int, str]:
        """The HTTP status, and the version of the server that has answered."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[1]}/generate", data=b"{}", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    def command(self, what: str, *words: object) -> None:
        async def call() -> None:
            await getattr(Gateway(f"http://127.0.0.1:{self.ports[1]}", TOKEN), what)(*words)

        asyncio.run(call())

    def _connects(self, which: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.ports[which])) == 0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, (free_port(), free_port()))
    made.start_server("v0")
    made.start_gateway()
    yield made
    for process in made.running.values():
        process.kill()
        process.wait()


def test_a_gateway_that_is_killed_in_an_update_stays_closed_when_it_is_back(site: Site) -> None:
    assert site.ask() == (200, "v0")
    site.command("close", "u", "v1", NO_FENCE)
    site.kill("gateway")
    site.start_gateway()
    assert site.ask()[0] == 503
    site.command("open", "u")
    assert site.ask()[0] == 200


def test_a_server_that_is_killed_behind_its_gateway_gets_no_requests_when_it_is_back(site: Site) -> None:
    site.kill("server")
    site.start_server("base")
    assert site.ask()[0] == 503
    # nor if that happens in an update
    site.command("close", "u", "v1", NO_FENCE)
    site.kill("server")
    site.start_server("base")
    with pytest.raises(AdmissionRefused):
        site.command("open", "u")
    # until an update has ended
    site.command("close", "next", "v1", NO_FENCE)
    site.command("open", "next")
    assert site.ask()[0] == 200


def test_if_both_are_killed_the_stored_state_does_not_count(site: Site) -> None:
    site.command("close", "u", "v1", NO_FENCE)
    site.command("open", "u")
    site.kill("gateway")
    site.kill("server")
    site.start_server("base")
    site.start_gateway()
    assert site.ask()[0] == 503

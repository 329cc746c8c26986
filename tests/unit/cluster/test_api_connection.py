"""A connection to the API server is kept, and opened again when the server has closed it."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api
from tests.cluster.failures import ClusterDown


class Server(http.server.ThreadingHTTPServer):
    """Returns the number of its connections so far. hang_up: close each connection after a response."""

    hang_up = False
    connections = 0

    def get_request(self):
        self.connections += 1
        return super().get_request()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        body = str(self.server.connections).encode()
        self.send_response({"/missing": 404, "/forbidden": 403}.get(self.path, 200))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.server.hang_up  # without `Connection: close`, like a server that restarts

    def log_message(self, *_: object) -> None:
        pass


class PlainConnection(http.client.HTTPConnection):
    def __del__(self) -> None:
        self.close()


class PlainApi(Api):
    """A client without TLS."""

    def __init__(self, port: int) -> None:
        super().__init__(Path("unused"))
        self._port = port

    def _connect(self, timeout_s: float):
        self._of_thread.connection = PlainConnection("127.0.0.1", self._port, timeout=timeout_s)
        return self._of_thread.connection


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_requests_share_one_connection(server: Server) -> None:
    api = PlainApi(server.server_port)
    assert [api.get("/"), api.get("/"), api.get("/")] == [1, 1, 1]


def test_a_connection_that_the_server_has_closed_is_opened_again(server: Server) -> None:
    server.hang_up = True
    api = PlainApi(server.server_port)
    assert [api.get("/"), api.get("/"), api.get("/")] == [1, 2, 3]


def test_a_missing_object_is_none_and_another_status_an_error(server: Server) -> None:
    api = PlainApi(server.server_port)
    assert api.find("/missing") is None
    with pytest.raises(ClusterDown, match="GET /missing: status 404"):
        api.get("/missing")
    with pytest.raises(ClusterDown, match="GET /forbidden: status 403"):
        api.find("/forbidden")


def test_a_server_that_does_not_run_is_an_error(server: Server) -> None:
    port = server.server_port
    server.shutdown()
    server.server_close()
    with pytest.raises(ClusterDown, match="does not respond"):
        PlainApi(port).get("/")

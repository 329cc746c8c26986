"""An API server over plain HTTP whose answers a test writes down, in their order, for each path."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from understudy_cli.api import Api
from understudy_cli.kubeconfig import Access


@dataclass(frozen=True)
class Answer:
    """A body is JSON unless it is text. make: makes the body of the moment. lines: of a stream, which stays open until
    the test ends if `stays`, and whose connection is lost at its end if `breaks`. retry_after: of a busy server.
    """

    body: Any = None
    status: int = 200
    lines: tuple[Any, ...] = ()
    stays: bool = False
    breaks: bool = False
    make: Callable[[], Any] | None = None
    retry_after: str = ""


@dataclass
class Scripted:
    """answers: by path; the last one of a path is repeated. requests: path and query, in the order of their arrival.
    patches: path, type of the content, and body. headers: of all requests.
    """

    answers: dict[str, list[Answer]]
    requests: list[tuple[str, dict[str, list[str]], str]] = field(default_factory=list)
    patches: list[tuple[str, str, Any]] = field(default_factory=list)
    headers: list[tuple[str, str]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    apis: list[Api] = field(default_factory=list)

    def api(self, **access: Any) -> Api:
        """Nothing asks through it after the test."""
        api = Api(Access(server=self.url, namespace="team-a", context="test", **({"token": "secret"} | access)))
        self.apis.append(api)
        return api

    def queries(self, path: str) -> list[dict[str, list[str]]]:
        return [query for asked, query, _ in self.requests if asked == path]


@contextmanager
def scripted(answers: dict[str, list[Answer]], tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    script = Scripted(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)  # a proxy gets the whole address
            parts = parts._replace(path=self.path.partition("?")[0])
            script.headers += self.headers.items()
            script.requests.append((parts.path, parse_qs(parts.query), self.headers.get("Authorization", "")))
            known = script.answers.get(parts.path, [Answer({"message": f"no answer for {parts.path}"}, 404)])
            answer = known.pop(0) if len(known) > 1 else known[0]
            self.send_response(answer.status)
            self.send_header("Transfer-Encoding", "chunked")
            if answer.retry_after:
                self.send_header("Retry-After", answer.retry_after)
            self.end_headers()
            if answer.lines or answer.stays:
                for line in answer.lines:
                    self._chunk((line if isinstance(line, str) else json.dumps(line)) + "\n")
                if answer.stays:
                    script.ended.wait(30)
                if answer.breaks:
                    self.close_connection = True
                    return
            else:
                body = answer.body if answer.make is None else answer.make()
                self._chunk(body if isinstance(body, str) else json.dumps(body))
            self.wfile.write(b"0\r\n\r\n")

        def do_PATCH(self) -> None:
            size = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(size))
            script.patches.append((self.path, self.headers["Content-Type"], body))
            self.do_GET()

        def _chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        def log_message(self, *_: object) -> None:
            """The test reads `requests`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    script.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        for api in script.apis:
            api.closed.set()
        script.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()

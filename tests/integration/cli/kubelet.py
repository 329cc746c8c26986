"""A kubelet that only serves logs, to which the API server sends requests for the logs of its node's pods.

The path is that of a real kubelet: /containerLogs/NAMESPACE/POD/CONTAINER. Lines have times, as with timestamps=true.
"""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class Logs:
    """The lines of each pod, with the seconds of their minute. A follower waits for more until its pod has ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[str, list[tuple[int, str]]] = {}
        self._ended: set[str] = set()
        self.port = 0

    def write(self, pod: str, second: int, *lines: str) -> None:
        with self._changed:
            self._lines.setdefault(pod, []).extend((second, line) for line in lines)
            self._changed.notify_all()

    def end(self, pod: str) -> None:
        with self._changed:
            self._ended.add(pod)
            self._changed.notify_all()

    def stream(self, pod: str, *, follow: bool, tail: int | None) -> Iterator[str]:
        """The lines, each with its time."""
        with self._changed:
            written = self._lines.get(pod, [])
            at = 0 if tail is None else max(0, len(written) - tail)
        while True:
            with self._changed:
                while follow and at >= len(self._lines.get(pod, [])) and pod not in self._ended:
                    self._changed.wait(30)
                fresh = self._lines.get(pod, [])[at:]
                at += len(fresh)
                is_over = not follow or (pod in self._ended and at >= len(self._lines.get(pod, [])))
            for number, (second, line) in enumerate(fresh):
                yield f"2026-11-20T12:00:{second:02d}.{number:09d}Z {line}\n"
            if is_over:
                return


@contextmanager
def kubelet(folder: Path) -> Iterator[Logs]:
    logs = Logs()
    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run(
        [*words, "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            pod = parts.path.split("/")[3]
            tail = query.get("tailLines", [None])[0]
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            given = None if tail is None else int(tail)
            for line in logs.stream(pod, follow=query.get("follow") == ["true"], tail=given):
                data = line.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            """The tests read the client's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    logs.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield logs
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

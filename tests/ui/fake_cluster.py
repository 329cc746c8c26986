"""An API server over plain HTTP with the objects of a test, which answers lists and watches.

It knows the collections that the dashboard follows. Selectors are ignored: a test stores only objects that match.
"""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.ui.browser import LIMIT_S
from understudy_cli.api import Api
from understudy_cli.kubeconfig import Access

GROUP = "/apis/understudy.dev/v1alpha1"
KINDS = ("trainingjobs", "injectedjobs", "hotsparepools", "recoveries")
Object = dict[str, Any]


class FakeCluster:
    """Collections by their last word, such as pods. forbidden: resources that the account may not watch."""

    def __init__(self) -> None:
        self.url = ""
        self.forbidden: set[str] = set()
        self.watches: list[str] = []  # the collection of each watch, in the order of their arrival
        self._lock = threading.Condition()
        self._version = 1
        self._objects: dict[str, dict[str, Object]] = {}
        self._watchers: dict[str, list[queue.Queue[Object | None]]] = {}
        self._events: list[tuple[int, str, Object]] = []  # version, collection, and the event of a watch

    def api(self) -> Api:
        return Api(Access(server=self.url, namespace="team-a", context="test", token="secret"))

    def put(self, kind: str, *objects: Object) -> None:
        """Create or replace them."""
        self._change(kind, objects, "")

    def delete(self, kind: str, *objects: Object) -> None:
        self._change(kind, objects, "DELETED")

    def _change(self, kind: str, objects: tuple[Object, ...], event: str) -> None:
        with self._lock:
            stored = self._objects.setdefault(kind, {})
            for raw in objects:
                self._version += 1
                metadata = {**raw["metadata"], "resourceVersion": str(self._version)}
                key = f"{metadata.get('namespace')}/{metadata['name']}"
                known = "MODIFIED" if key in stored else "ADDED"
                if event:
                    stored.pop(key, None)
                else:
                    stored[key] = {**raw, "metadata": metadata}
                change = {"type": event or known, "object": {**raw, "metadata": metadata}}
                self._events.append((self._version, kind, change))
                for watcher in self._watchers.get(kind, ()):
                    watcher.put(change)

    def listed(self, kind: str) -> Object:
        with self._lock:
            items = list(self._objects.get(kind, {}).values())
            return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    def watch(self, kind: str, version: int) -> Iterator[Object]:
        """The changes after that version."""
        events: queue.Queue[Object | None] = queue.Queue()
        with self._lock:
            self.watches.append(kind)
            self._lock.notify_all()
            for at, changed, event in self._events:
                if changed == kind and at > version:
                    events.put(event)
            self._watchers.setdefault(kind, []).append(events)
        while (newest := events.get()) is not None:
            yield newest

    def wait_for_watches(self, number: int) -> None:
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.watches) >= number, LIMIT_S), self.watches

    def end_watches(self) -> None:
        with self._lock:
            for watchers in self._watchers.values():
                while watchers:
                    watchers.pop().put(None)


@contextmanager
def fake_cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            kind = parts.path.rpartition("/")[2]
            if parts.path == GROUP:
                self._answer({"resources": [{"name": name} for name in KINDS]})
            elif (query := parse_qs(parts.query)).get("watch"):
                self._stream(cluster.watch(kind, int(query["resourceVersion"][0])))
            else:
                self._answer(cluster.listed(kind))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            resource = body["spec"]["resourceAttributes"]["resource"]
            self._answer({"status": {"allowed": resource not in cluster.forbidden}})

        def _answer(self, content: Object) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, events: Iterator[Object]) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for event in events:
                    data = json.dumps(event).encode() + b"\n"
                    self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")
            except ConnectionError:
                self.close_connection = True  # the client has gone

        def log_message(self, *_: object) -> None:
            """Tests ask the cluster."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    cluster.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield cluster
    finally:
        cluster.end_watches()
        server.shutdown()
        server.server_close()

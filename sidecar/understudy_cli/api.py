"""A client of the API server: get, list, watch, logs. It changes only annotations (`annotate`). Two requests
of `doctor` store nothing.

Rules: each answer and each line has a size limit. No redirect is followed, because it would send the token elsewhere.
A request whose credentials were rejected is sent once more, with newer ones if the kubeconfig can get any. So is a
request, after a pause, that an API server with too many requests has not executed.
"""

import base64
import contextlib
import json
import os
import re
import ssl
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import urllib3

from understudy_cli import credentials, fields
from understudy_cli.command_errors import NoAnswer, WrongCall
from understudy_cli.fields import Raw
from understudy_cli.kubeconfig import Access
from understudy_cli.proxies import proxy_of
from understudy_cli.untrusted import LINE_LENGTH, one_line

CONNECT_S, READ_S = 10.0, 30.0
#: The API server sends a bookmark a minute: a watch that is silent for longer has lost its connection.
WATCH_SILENCE_S = 100.0
WATCH_S = 300
PAGE = 500
#: 500 pods of an ordinary job have 5 MB.
ANSWER_BYTES = 64 << 20
WATCH_LINE_BYTES = 8 << 20
CHUNK_BYTES = 1 << 16
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, GONE, TOO_MANY_REQUESTS = 401, 403, 404, 410, 429
#: As client-go: an API server that limits its load answers so, and says after how many seconds to retry.
BUSY_RETRIES, LONGEST_BUSY_S = 10, 5.0
Query = Mapping[str, str]


@dataclass(frozen=True)
class ObjectList:
    items: tuple[Raw, ...]
    version: str  # a watch continues from it


@dataclass(frozen=True)
class WatchEvent:
    """kind: ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: Raw


class Api:
    """May be used by several threads. closed: set it to end the threads that follow collections and logs."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.closed = threading.Event()
        self._bearer = credentials.Bearer(access)
        self._pool = self._connect()

    def get(self, path: str, query: Query | None = None) -> Raw:
        """Raises NoAnswer."""
        return self._json("GET", path, query or {}, None)

    def list(self, path: str, selector: str = "", fields_of: str = "") -> ObjectList:
        """All objects of a collection. fields_of: a field selector. Raises NoAnswer."""
        pages = tuple(self.pages(path, selector, fields_of))
        return ObjectList(tuple(item for page in pages for item in page.items), pages[-1].version)

    def pages(self, path: str, selector: str = "", fields_of: str = "") -> Iterator[ObjectList]:
        """The same in parts, so that a caller need not keep all objects as they are. Raises NoAnswer."""
        token = ""
        while True:
            query = {"limit": str(PAGE), "labelSelector": selector, "fieldSelector": fields_of, "continue": token}
            page = self._json("GET", path, query, None)
            version = str(fields.get(page, "metadata", "resourceVersion") or "")
            yield ObjectList(tuple(fields.entries(page, "items")), version)
            token = str(fields.get(page, "metadata", "continue") or "")
            if not token:
                return

    def watch(self, path: str, version: str, selector: str = "", fields_of: str = "") -> Iterator[WatchEvent]:
        """The changes since that version, until the API server ends the watch. Raises NoAnswer."""
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
        query |= {"resourceVersion": version, "labelSelector": selector, "fieldSelector": fields_of}
        for line in self._lines(path, query, WATCH_SILENCE_S, WATCH_LINE_BYTES):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise NoAnswer(f"the API server sent a line of a watch that is not JSON: {error}", GONE) from error
            content = fields.table(event, "object")
            if fields.text(event, "type") == "ERROR":
                raise NoAnswer(fields.text(content, "message"), fields.count(content, "code"))
            yield WatchEvent(fields.text(event, "type"), content)

    def log(self, path: str, query: Query, *, follow: bool) -> Generator[str]:
        """The lines of a container's log, as they are. Raises NoAnswer."""
        patience = None if follow else READ_S
        given = {**query, "follow": "true"} if follow else query
        for line in self._lines(path, given, patience, LINE_LENGTH):
            yield line.decode(errors="replace")

    def may(self, verb: str, resource: str, group: str = "", namespace: str = "", subresource: str = "") -> bool:
        """Whether this account may do so. An access review stores nothing. Raises NoAnswer."""
        attributes = {"verb": verb, "resource": resource, "group": group, "namespace": namespace}
        attributes["subresource"] = subresource
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
        }
        answer = self._json("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, review)
        return fields.flag(answer, "status", "allowed")

    def dry_run(self, path: str, body: Raw) -> None:
        """Ask whether the API server would create the object. Nothing is stored. Raises NoAnswer."""
        self._json("POST", path, {"dryRun": "All", "fieldValidation": "Strict"}, body)

    def annotate(self, path: str, uid: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of an object, and remove those without a value. Raises NoAnswer, also if its uid differs."""
        self._json("PATCH", path, {}, {"metadata": {"uid": uid, "annotations": dict(annotations)}})

    # Requests -------------------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str, query: Query, body: Raw | None) -> Raw:
        with self._response(method, path, query, body, READ_S) as response:
            content = _read(response, ANSWER_BYTES, f"{method} {path}", self.access.server)
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise NoAnswer(f"{self.access.server} answered {path} with no JSON: is it an API server?") from error
        return answer if isinstance(answer, Mapping) else {}

    def _lines(self, path: str, query: Query, silence_s: float | None, limit: int) -> Iterator[bytes]:
        """The lines of a streamed answer. The rest of a line above the limit is dropped."""
        with self._response("GET", path, query, None, silence_s) as response:
            rest = b""
            while chunk := _chunk(response, self.access.server):
                *ends, rest = (rest + chunk).split(b"\n")
                yield from (end[:limit] for end in ends)
                rest = rest[: limit + 1]
            if rest:
                yield rest[:limit]

    @contextlib.contextmanager
    def _response(
        self, method: str, path: str, query: Query, body: Raw | None, read_s: float | None
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """An answer with status 2xx, whose connection ends with the block."""
        response = self._send_patiently(method, path, query, body, read_s)
        try:
            if response.status == UNAUTHORIZED and self._bearer.forget():
                response.close()
                self._pool = self._connect()
                response = self._send_patiently(method, path, query, body, read_s)
            if not 200 <= response.status <= 299:
                raise self._refusal(response, method, path)
            yield response
        finally:
            response.close()

    def _send_patiently(
        self, method: str, path: str, query: Query, body: Raw | None, read_s: float | None
    ) -> urllib3.BaseHTTPResponse:
        for _ in range(BUSY_RETRIES):
            response = self._send(method, path, query, body, read_s)
            if response.status != TOO_MANY_REQUESTS:
                return response
            pause = response.headers.get("Retry-After", "")
            response.close()
            self.closed.wait(min(float(pause), LONGEST_BUSY_S) if pause.isdecimal() else 1.0)
        return self._send(method, path, query, body, read_s)

    def _send(
        self, method: str, path: str, query: Query, body: Raw | None, read_s: float | None
    ) -> urllib3.BaseHTTPResponse:
        given = urlencode({name: value for name, value in query.items() if value})
        url = f"{self.access.server}{path}{'?' if given else ''}{given}"
        try:
            return self._pool.request(
                method,
                url,
                headers=self._headers(method),
                body=None if body is None else json.dumps(body).encode(),
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s),
            )
        except urllib3.exceptions.HTTPError as error:
            raise no_answer(self.access.server, error) from error

    def _headers(self, method: str) -> urllib3.HTTPHeaderDict:
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = urllib3.HTTPHeaderDict({"Accept": "application/json, */*", "Content-Type": content})
        headers |= {"Accept-Encoding": "identity", "User-Agent": "understudy"}
        if token := self._bearer.token():
            headers["Authorization"] = f"Bearer {token}"
        elif self.access.user:
            pair = f"{self.access.user}:{self.access.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        for name, value in self.access.impersonation:
            headers.add(name, value)
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise WrongCall(
                    f"the user of context {self.access.context} has a character that the header {name} cannot have: "
                    "fix the kubeconfig, or the program or the file from which it gets the token"
                )
        return headers

    def _refusal(self, response: urllib3.BaseHTTPResponse, method: str, path: str) -> NoAnswer:
        try:
            answer = json.loads(_read(response, CHUNK_BYTES, path, self.access.server))
        except (ValueError, RecursionError, NoAnswer):
            answer = {}
        message = fields.text(answer, "message") or f"the answer to {path} has status {response.status}"
        if response.status == UNAUTHORIZED:
            context = self.access.context
            message = (
                f"the API server rejects the credentials of context {context}: log in again, or use another context"
            )
        elif response.status == FORBIDDEN:
            role = "edit" if method == "PATCH" else "view"
            message = f"{message}. Ask for the role {role}, which contains the rights of this command"
        return NoAnswer(message, response.status)

    def _connect(self) -> urllib3.PoolManager:
        proxy = self.access.proxy or proxy_of(self.access.server, os.environ)
        options: dict[str, object] = {"maxsize": 16, "block": False}
        if self.access.server.startswith("https://"):
            options |= {"ssl_context": self._tls(), "cert_reqs": "CERT_REQUIRED" if self.access.verify else "CERT_NONE"}
            if not self.access.verify:
                urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the user's own choice
            if self.access.server_name:
                options |= {"server_hostname": self.access.server_name, "assert_hostname": self.access.server_name}
        if not proxy:
            return urllib3.PoolManager(**options)  # type: ignore[arg-type]
        if not proxy.startswith(("http://", "https://")):
            raise WrongCall(f"the proxy {proxy!r} is not supported: expected one with http:// or https://")
        return urllib3.ProxyManager(proxy, **options)  # type: ignore[arg-type]

    def _tls(self) -> ssl.SSLContext:
        """Raises WrongCall if a certificate of the kubeconfig cannot be used."""
        try:
            context = ssl.create_default_context(cadata=credentials.authority_of(self.access))
            if not self.access.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if (pair := self._bearer.certificate()) is not None:
                _load(context, *pair)
        except ssl.SSLError as error:
            raise WrongCall(f"a certificate or key of context {self.access.context} cannot be used: {error}") from error
        return context


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The library reads certificates from files only: this one is readable by this user alone, and deleted at once."""
    handle, name = tempfile.mkstemp(prefix="understudy-", suffix=".pem")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()


def _read(response: urllib3.BaseHTTPResponse, limit: int, request: str, server: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while chunk := _chunk(response, server):
        size += len(chunk)
        if size > limit:
            raise NoAnswer(f"the answer to {request} has more than {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _chunk(response: urllib3.BaseHTTPResponse, server: str) -> bytes:
    """The bytes that have arrived; empty at the end."""
    try:
        return response.read1(CHUNK_BYTES)
    except urllib3.exceptions.HTTPError as error:
        raise no_answer(server, error) from error


#: urllib3 puts its own object before some messages.
_OBJECT = re.compile(r"^HTTPS?Connection(?:Pool)?\([^)]*\): ")


def no_answer(server: str, error: Exception) -> NoAnswer:
    """An error of a connection, in words for a user."""
    cause: BaseException = error
    while (reason := getattr(cause, "reason", None)) is not None and isinstance(reason, BaseException):
        cause = reason
    seen = _OBJECT.sub("", one_line(str(cause))).rstrip(".") or type(cause).__name__
    if "CERTIFICATE_VERIFY_FAILED" in seen:
        return NoAnswer(f"the certificate of {server} is not trusted ({seen}): get a new kubeconfig for this cluster")
    return NoAnswer(f"the API server {server} does not respond ({seen}): check the context and the network")


def collection(group: str, plural: str, namespace: str = "") -> str:
    """The path of a collection, in one namespace or in all. group: such as apps/v1, or v1 for the core group."""
    root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"

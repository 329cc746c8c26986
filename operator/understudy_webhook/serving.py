"""The TLS server: POST /mutate and /validate for the API server; GET /healthz and /readyz, plain, for the kubelet.

Unless client certificates are configured (Clients), every pod that reaches the port may send a request. So requests are
limited before they are read (runtime.bounded_server), before they are parsed (review.py) and while their answer is
computed (cpu_limit.py). A request that breaks a limit gets a 4xx answer or none. It is counted, not logged.

A renewed certificate is served to new connections without a restart. Each certificate has a separate SSL context, which
a connection gets at its first bytes: a context that loads a second certificate would be left with half of it if the key
does not match. A replica is ready once it has a certificate.
"""

import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web

from understudy_operator.plan.facts.sidecar_settings import DEFAULT_SIDECAR_SETTINGS, SidecarSettings
from understudy_operator.runtime.bounded_server import BoundedServer, ServerLimits
from understudy_operator.runtime.probe_server import Reply
from understudy_protocol import logs
from understudy_webhook.cpu_limit import CpuLimitExceeded, cpu_limit
from understudy_webhook.metrics import EXPENSIVE, FAILED, MALFORMED, UNKNOWN_CALLER, WebhookMetrics, result_of
from understudy_webhook.review import NoReview, Raw, mutate, read_request, validate

#: etcd stores objects of at most 1.5 MiB, and the API server reads requests of at most twice that. A review contains
#: the object and, if the object is changed, the old one. The rest is for the review's other fields: the user with its
#: groups, and the options.
MOST_BYTES = 2 * (3 << 19) + (128 << 10)
LIMITS = ServerLimits(body=MOST_BYTES)
#: A pod takes 1 ms, the check of a JobSet 2 ms for each replicatedJob with the label.
ANSWER_CPU_S = 0.25
MOST_LOGGED = 500
#: Rejections logged in a second, because any pod can cause some. Callers get the message, and metrics count them all.
LINES_PER_S = 10
STOP_S = 2.0
log = logging.getLogger(__name__)

Answer = Callable[[Raw], dict[str, Any]]


@dataclass(frozen=True)
class Clients:
    """The accepted callers: holders of a certificate of this authority with one of these names (CN). No names: all
    holders.
    """

    authority: str  # PEM
    names: frozenset[str] = frozenset()

    def accepts(self, certificate: Mapping[str, Any] | None) -> bool:
        subject = dict(pair for part in (certificate or {}).get("subject", ()) for pair in part)
        return not self.names or subject.get("commonName") in self.names


class Serving:
    def __init__(
        self,
        sidecar_image: str,
        metrics: WebhookMetrics | None = None,
        clients: Clients | None = None,
        limits: ServerLimits = LIMITS,
        sidecar_settings: SidecarSettings = DEFAULT_SIDECAR_SETTINGS,
    ) -> None:
        self.metrics = WebhookMetrics() if metrics is None else metrics
        self._clients = clients
        self._answers: Mapping[str, Answer] = {
            "/mutate": partial(mutate, sidecar_image=sidecar_image, sidecar_settings=sidecar_settings),
            "/validate": validate,
        }
        self._logged: set[tuple[str, int]] = set()
        self._second, self._lines = 0, 0
        listening = self._context()
        listening.sni_callback = self._choose
        self._current: ssl.SSLContext | None = None
        self._server = BoundedServer(
            self._answer, limits, listening, lambda reason: self.metrics.count_drop(reason.value)
        )
        self.is_stopping = False  # it will soon accept no calls

    def load(self, certificate: Path, key: Path) -> None:
        """Serve this certificate to new connections. Raises OSError, or an ssl.SSLError (a subclass)."""
        context = self._context()
        context.load_cert_chain(certificate, key)
        self._current = context

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # the API server resumes no session
        if self._clients is not None:
            context.load_verify_locations(cadata=self._clients.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @property
    def is_ready(self) -> bool:
        return self._current is not None and not self.is_stopping

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        if self._current is not None:
            connection.context = self._current

    async def listen(self, port: int) -> int:
        """Return the port. Port 0 chooses a free one."""
        return await self._server.listen(port)

    async def close(self) -> None:
        await self._server.close(STOP_S)

    def _answer(self, request: web.BaseRequest, body: bytes) -> web.Response:
        answer = self._answers.get(request.path)
        if answer is None or request.method != "POST":
            return web.Response(status=404, text="POST /mutate and /validate\n")
        began = time.monotonic()
        response, result = self._reviewed(answer, request, body)
        self.metrics.count_request(request.path.removeprefix("/"), result, time.monotonic() - began)
        return response

    def _reviewed(self, answer: Answer, request: web.BaseRequest, body: bytes) -> tuple[web.Response, str]:
        """The answer, and its result for the metrics."""
        if self._clients is not None and not self._clients.accepts(request.get_extra_info("peercert")):
            return web.Response(status=403, text="this client certificate is not the API server's\n"), UNKNOWN_CALLER
        try:
            with cpu_limit(ANSWER_CPU_S):
                review_request = read_request(body)
                logs.about(namespace=review_request["namespace"][:MOST_LOGGED])
                review = answer(review_request)
        except NoReview as error:
            return web.Response(status=400, text=f"{error}\n"), MALFORMED
        except CpuLimitExceeded:
            return web.Response(status=413, text=f"the answer takes more than {ANSWER_CPU_S:g} s\n"), EXPENSIVE
        except Exception as error:  # noqa: BLE001 (it is logged, and failurePolicy decides about the object)
            self._log_once(error)
            return web.Response(status=500, text="the webhook has a bug; its log has the details\n"), FAILED
        if not review["response"]["allowed"] and self._may_log():
            log.info("%s", _line(review_request, review["response"]))
        return web.json_response(review), result_of(review["response"])

    def _may_log(self) -> bool:
        second = int(time.monotonic())
        self._lines = self._lines + 1 if second == self._second else 1
        self._second = second
        return self._lines <= LINES_PER_S

    def _log_once(self, error: Exception) -> None:
        """With its traceback, but only once for each place in the code: callers can repeat it at will."""
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        place = ("", 0) if traceback is None else (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        if place not in self._logged:
            self._logged.add(place)
            log.error(
                "a request could not be answered; further failures at this place are only counted", exc_info=error
            )


def answer_probe(serving: Serving, path: str) -> Reply:
    """GET /healthz and /readyz, for the kubelet."""
    if path == "/healthz":
        return Reply(b"ok\n")
    if path != "/readyz":
        return Reply(b"GET /healthz and /readyz\n", HTTPStatus.NOT_FOUND)
    if serving.is_ready:
        return Reply(b"ok\n")
    state = b"leaves\n" if serving.is_stopping else b"waits for a certificate\n"
    return Reply(state, HTTPStatus.INTERNAL_SERVER_ERROR)


def _line(review_request: Raw, response: Raw) -> str:
    """One short line, whatever text the caller has sent."""
    metadata = (review_request["object"] or {}).get("metadata") or {}
    name = review_request["name"] or metadata.get("generateName", "")
    line = f"{review_request['namespace']}/{name} rejected: {response['status']['message']}"
    return json.dumps(line[:MOST_LOGGED], ensure_ascii=False)[1:-1]

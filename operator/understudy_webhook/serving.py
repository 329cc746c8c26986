"""The TLS server: POST /mutate and /validate for the API server; GET /healthz and /readyz, plain, for the kubelet.

A certificate that is renewed is served from the next connection on, without a restart: each has a context of its own,
which a connection takes at its first words. (One context that loads another certificate is left with half of it where
the key does not fit.) Ready is who has a certificate.
"""

import logging
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from understudy_protocol import logs
from understudy_webhook.metrics import FAILED, MALFORMED, WebhookMetrics, result_of
from understudy_webhook.review import NoReview, mutate, read_request, validate

#: An object of the API server has at most 1.5 MB, and a review of a change has two of them.
MOST_BYTES = 8 << 20
STOP_S = 2.0
log = logging.getLogger(__name__)

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Serving:
    def __init__(self, sidecar_image: str, metrics: WebhookMetrics | None = None, log_format: str = logs.TEXT) -> None:
        self.metrics = WebhookMetrics() if metrics is None else metrics
        self._listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._listening.sni_callback = self._choose
        self._current: ssl.SSLContext | None = None
        self._app = web.Application(client_max_size=MOST_BYTES)
        inject = partial(mutate, sidecar_image=sidecar_image, log_format=log_format)
        self._app.router.add_post("/mutate", partial(_measured, self.metrics, "mutate", inject))
        self._app.router.add_post("/validate", partial(_measured, self.metrics, "validate", validate))
        self._runner: web.AppRunner | None = None
        self.leaves = False  # it takes no more calls soon

    def load(self, certificate: Path, key: Path) -> None:
        """Serve this one from the next connection on. Raises OSError, or an ssl.SSLError (which is one)."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        self._current = context

    @property
    def is_ready(self) -> bool:
        return self._current is not None and not self.leaves

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        if self._current is not None:
            connection.context = self._current

    async def listen(self, port: int) -> int:
        """The port (0 chooses a free one)."""
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=STOP_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, "0.0.0.0", port, ssl_context=self._listening, backlog=1024).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


async def listen_for_probes(serving: Serving, port: int) -> web.AppRunner:
    """To be cleaned up by the caller."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if serving.is_ready:
            return web.Response(text="ok\n")
        return web.Response(text="leaves\n" if serving.leaves else "waits for a certificate\n", status=500)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner


async def _measured(metrics: WebhookMetrics, endpoint: str, answer: Answer, request: web.Request) -> web.Response:
    body, began = await request.read(), time.monotonic()  # from when it is whole: the caller's pace is not ours
    response, result = _answer(answer, request.path, body)
    metrics.answered(endpoint, result, time.monotonic() - began)
    return response


def _answer(answer: Answer, path: str, body: bytes) -> tuple[web.Response, str]:
    """The answer, and what came of it in a word."""
    try:
        asked = read_request(body)
        logs.about(namespace=str(asked.get("namespace", "")))
    except NoReview as error:
        return web.Response(text=f"{error}\n", status=400), MALFORMED
    try:
        review = answer(dict(asked))
    except Exception:
        # What follows is the configuration's to say (failurePolicy): nothing is guessed here.
        log.exception("%s %s failed", path, asked.get("uid"))
        return web.Response(text="the webhook has a bug; its log has the details\n", status=500), FAILED
    _log(asked, review["response"])
    return web.json_response(review), result_of(review["response"])


def _log(asked: Any, response: Any) -> None:
    if not response["allowed"]:
        metadata = (asked.get("object") or {}).get("metadata", {})
        name = asked.get("name") or metadata.get("generateName", "")
        log.info("%s/%s refused: %s", asked.get("namespace", ""), name, response["status"]["message"])

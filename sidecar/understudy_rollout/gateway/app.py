"""The gateway's routes.

    POST /understudy/v1/weights/{close,…,abandon}   messages of an update, with the token
    GET  /understudy/v1/weights                     the state of the weights
    *    /understudy/v1/engine/…                    forwarded for the running update, with the token
    POST GENERATION                                 forwarded while the weights are Fresh, else 503
    GET  READING                                    always forwarded: metrics, the models
    GET  HEALTH                                     forwarded, but answered here during an update

A server may generate a token for a health check. While it is paused for an update it cannot, and reports after a while
that it is unhealthy, as SGLang does. So health checks, like requests, do not reach it during an update.

All other requests are answered 403: clients must not use the server's own API for its weights. The server is watched
(`server_watch`): if it stops listening it has lost its weights, and is Uncertain when it is back.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Collection
from dataclasses import asdict
from functools import partial
from typing import Any, Callable, Optional, TypeVar

import aiohttp
from aiohttp import web

from understudy_rollout.engines import http
from understudy_rollout.gateway import bodies, messages
from understudy_rollout.gateway.bodies import Body
from understudy_rollout.gateway.connections import MAX_CONNECTIONS, Connections
from understudy_rollout.gateway.flights import Denied, InFlightRequests
from understudy_rollout.gateway.listener import address_of
from understudy_rollout.gateway.proxy import ClientAnswer, EngineGone, Proxy, ask
from understudy_rollout.gateway.server_watch import EngineWatch
from understudy_rollout.weights import Event, EventRejected, Weights, WeightsLost, WeightsState

WEIGHTS = "/understudy/v1/weights"
ENGINE = "/understudy/v1/engine"
GENERATION = {
    *("/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"),
    *("/v1/score", "/v1/rerank", "/encode", "/classify", "/inference/v1/generate", "/tokenize", "/detokenize"),
}
HEALTH = {"/health", "/health_generate"}
READING = {
    *("/ping", "/metrics", "/version", "/v1/models", "/load"),
    *("/get_model_info", "/model_info", "/get_server_info", "/server_info"),
}
OF_THE_GATEWAY = (http.UPDATE_HEADER, http.FENCE_HEADER)
#: For an update's call, which has the token.
CALL_BYTES = 1 << 30
E = TypeVar("E")
log = logging.getLogger(__name__)


class GatewayApp:
    def __init__(
        self,
        flights: InFlightRequests,
        proxy: Proxy,
        token: str,
        generation: Collection[str] = (),
        most_body: int = bodies.MAX_BYTES,
        most_connections: int = MAX_CONNECTIONS,
    ) -> None:
        if not token:
            raise ValueError("token: expected a secret that the trainer also has; got ''")
        self._flights, self._proxy, self._token = flights, proxy, token.encode()
        self._generation = GENERATION.union(generation)
        self._most_body = most_body
        self.connections = Connections(most_connections)
        self._watch = EngineWatch(address_of(proxy.url), flights.weights_file.on_listener, self._on_engine_lost)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=CALL_BYTES)
        app.cleanup_ctx.append(self._run)
        app.router.add_post(WEIGHTS + "/close", partial(self._handled, messages.begin, self._flights.close))
        app.router.add_post(WEIGHTS + "/join", partial(self._handled, messages.join, self._handle_event))
        app.router.add_post(WEIGHTS + "/confirm", partial(self._handled, messages.confirm, self._handle_event))
        app.router.add_post(WEIGHTS + "/open", partial(self._handled, messages.commit, self._handle_event))
        app.router.add_post(WEIGHTS + "/abandon", partial(self._handled, messages.abandon, self._handle_event))
        app.router.add_get(WEIGHTS, self._get_weights)
        app.router.add_route("*", ENGINE + "/{path:.*}", self._call)
        app.router.add_route("*", "/{path:.*}", self._forward)
        return app

    async def _run(self, app: web.Application) -> AsyncIterator[None]:
        await self._proxy.start()
        watching = asyncio.ensure_future(self._watch.run())
        yield
        watching.cancel()
        await asyncio.wait({watching})
        await self._proxy.close()

    async def _handle_event(self, event: Event) -> int:
        return self._flights.handle(event)

    async def _call(self, request: web.Request) -> web.Response:
        """An update's call to the server. Calls that only read need no running update."""
        self._check_token(request, "Proxy-Authorization")
        with self.connections.handled(request):
            return await self._handle_engine_call(request)

    async def _handle_engine_call(self, request: web.Request) -> web.Response:
        body = await request.read()  # no await between this and the call
        if request.method in ("GET", "HEAD") and request.path[len(ENGINE) :] in READING | HEALTH:
            return await self._asked(request, body)
        try:
            call = messages.call(request.headers)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        self._watch.check()
        try:
            with self._flights.call(call):
                return await self._asked(request, body)
        except EventRejected as refused:
            log.warning("%s %s: %s", request.method, request.path, refused)
            return _not_answered(409, http.REFUSED, str(refused))

    async def _asked(self, request: web.Request, body: bytes) -> web.Response:
        url = self._proxy.url + request.raw_path[len(ENGINE) :]
        try:
            return await ask(request.method, url, request.headers, body, OF_THE_GATEWAY)
        except EngineGone as error:
            self._watch.check()
            return _not_answered(502, http.NOT_DELIVERED, str(error))
        except (aiohttp.ClientError, OSError) as error:
            return _not_answered(502, http.BROKEN_OFF, f"{type(error).__name__} {error}".rstrip())

    async def _handled(
        self, read: Callable[[bytes], E], handle: Callable[[E], Awaitable[int]], request: web.Request
    ) -> web.Response:
        """A message of an update."""
        self._check_token(request)
        with self.connections.handled(request):
            return await self._answer_message(read, handle, request)

    async def _answer_message(
        self, read: Callable[[bytes], E], handle: Callable[[E], Awaitable[int]], request: web.Request
    ) -> web.Response:
        try:
            event = read(await _limited_body(request))
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        self._watch.check()  # a server that was just restarted does not have the weights of this message
        weights = self._flights.weights
        before = weights.known().now
        try:
            aborted = await handle(event)
        except EventRejected as refused:
            return web.json_response({"error": str(refused)}, status=409)
        except OSError as error:
            unwritten = f"the gateway cannot write its state file, so it rejects the call: {error}"
            return web.json_response({"error": unwritten}, status=500)
        if weights.known().now != before:
            log.info("weights %s %s (%s): %d requests aborted", weights.state.value, weights.version, event, aborted)
        response = {**_weights_view(weights), "aborted": aborted}
        previous = asdict(weights.previous()) if weights.update else None
        return web.json_response({**response, "previous": previous}, dumps=_json)

    def _check_token(self, request: web.Request, header: str = "Authorization") -> None:
        given = request.headers.get(header, "").encode(errors="surrogateescape")  # the client may send any bytes
        if not hmac.compare_digest(given, b"Bearer " + self._token):
            raise web.HTTPUnauthorized(text=f"{header}: expected the bearer token of this gateway\n")

    async def _get_weights(self, request: web.Request) -> web.Response:
        return web.json_response({**_weights_view(self._flights.weights), "inFlight": len(self._flights)})

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        with self.connections.handled(request):
            return bodies.refusal(request, self._most_body) or await self._admitted(request)

    async def _admitted(self, request: web.Request) -> web.StreamResponse:
        if request.method in ("GET", "HEAD") and request.path in READING:
            return await self._forward_unlimited(request)
        if request.method in ("GET", "HEAD") and request.path in HEALTH:
            return await self._health(request)
        if request.method != "POST" or request.path not in self._generation:
            text = (
                f"{request.method} {request.path} is not for clients of this gateway (--generation PATH admits one)\n"
            )
            return web.Response(status=403, text=text)
        if not self._watch.connected and self._flights.denied() is None and not await self._watch.until_connected():
            return web.Response(status=502, text="the inference server does not answer\n")
        denied = self._flights.denied()
        if denied is not None:
            return _unavailable(denied)
        body = await bodies.body_of(request, self._most_body)
        denied = self._flights.denied()  # an update may have begun during the await
        if denied is not None:
            return _unavailable(denied)
        answer, error = await self._in_flight(request, body, self._flights.weights.version)
        return _await_answer(answer) if error is None else self._broken_off(request, error, answer)

    async def _in_flight(
        self, request: web.Request, body: Body, version: str
    ) -> tuple[ClientAnswer, Optional[BaseException]]:
        """The client's answer, and the error that has ended it early."""
        answer = ClientAnswer()
        with self._flights.flight() as flight:
            # In this task, because a separate one would cost a tenth of the whole request.
            try:
                await self._proxy.pass_on(request, body, answer, version)
            except asyncio.CancelledError as cancelled:
                if not flight.aborted:
                    raise  # the client has disconnected
                _continue_without_caller(flight.task)
                return answer, cancelled
            except Exception as failed:  # noqa: BLE001 (the client gets every error)
                return answer, failed
        return answer, None

    def _broken_off(self, request: web.Request, error: BaseException, answer: ClientAnswer) -> web.StreamResponse:
        if isinstance(error, EngineGone):
            self._watch.check()
        if answer.begun is not None:
            return _cut_off(request, answer.begun)
        if isinstance(error, bodies.TooLarge):
            return web.Response(status=413, text=str(error))
        denied = self._flights.denied()
        if denied is not None:
            return _unavailable(denied)
        return web.Response(status=502, text=f"the inference server closed the connection too early: {error}\n")

    async def _health(self, request: web.Request) -> web.StreamResponse:
        error: Optional[BaseException] = None
        if not self._flights.weights.update:
            answer, error = await self._in_flight(request, None, "")
            if error is None:
                return _await_answer(answer)
            if answer.begun is not None:
                return self._broken_off(request, error, answer)
        if self._flights.weights.update:  # "" as soon as the server is lost
            return web.Response(text="the inference server is up; its weights are being updated\n")
        return web.Response(status=502, text=f"the inference server does not answer: {str(error) or 'it closed'}\n")

    async def _forward_unlimited(self, request: web.Request) -> web.StreamResponse:
        answer = ClientAnswer()
        try:
            await self._proxy.pass_on(request, None, answer, "")
        except (EngineGone, aiohttp.ClientError) as error:
            if answer.begun is not None:
                return _cut_off(request, answer.begun)
            return web.Response(status=502, text=f"the inference server does not answer: {error}\n")
        return _await_answer(answer)

    def _on_engine_lost(self, lost: WeightsLost) -> None:
        """A restarted server has its initial weights, not those of the last update."""
        aborted = self._flights.on_engine_lost(lost)
        log.warning("%s: %d requests aborted", lost.reason, aborted)


async def _limited_body(request: web.Request) -> bytes:
    """Read at most one byte more than a message may have."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > messages.BODY_BYTES:
            break
    return bytes(body)


def _continue_without_caller(task: "Optional[asyncio.Task[Any]]") -> None:
    """The task was canceled, but answers instead of ending."""
    if task is not None and hasattr(task, "uncancel"):  # since Python 3.11
        task.uncancel()


def _cut_off(request: web.Request, begun: web.StreamResponse) -> web.StreamResponse:
    """The server has broken off this answer: close the connection, so that the client does not take it as complete."""
    if request.transport is not None:
        request.transport.abort()
    return begun


def _await_answer(answer: ClientAnswer) -> web.StreamResponse:
    given = answer.whole if answer.whole is not None else answer.begun
    assert given is not None
    return given


def _not_answered(status: int, why: str, message: str) -> web.Response:
    """An answer of the gateway itself."""
    return web.json_response({"error": message}, status=status, headers={http.NOT_ANSWERED_HEADER: why})


def _weights_view(weights: Weights) -> dict[str, str]:
    return {"state": weights.state.value, "version": weights.version, "reason": weights.reason}


def _json(text: object) -> str:
    return json.dumps(text, default=lambda value: value.value)


def _unavailable(denied: Denied) -> web.Response:
    kind = "weights_updating" if denied.state is WeightsState.UPDATING else "weights_uncertain"
    body = {"error": {"message": denied.reason, "type": kind, "code": 503}}
    headers = {"Retry-After": str(denied.retry_after_s)}
    return web.Response(status=503, text=json.dumps(body), content_type="application/json", headers=headers)

"""The web server of the dashboard: the page, and a stream of its changes for each browser.

Rules against other web sites that the user of the browser visits:
- The header Host has to be an address, localhost, or a name of the options. So a site whose name resolves to the
  address of the dashboard (DNS rebinding) gets nothing.
- A request that a browser marks as one of another site is rejected.
- The policy of the page allows scripts, styles and connections of the page itself only, and no frame.

Each stream compares the newest page with the one that it has sent, at the pace of its browser. A slow browser skips
states, so no messages wait for it.
"""

import asyncio
import contextlib
import ipaddress
import json
import math
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from importlib import resources

from aiohttp import web

from understudy_cli.command_errors import WrongCall
from understudy_cli.facts import Fleet
from understudy_cli.views.pages import Page, PageAddress, changes, page

#: Browsers that a process serves. A further one gets the status 503.
MOST_STREAMS = 64
#: Rows of one message.
MOST_ROWS = 1_000
#: A stream without changes sends a comment, which fails if the browser has gone. The server computes the ages of spares
#: and nodes again at least this often.
HEARTBEAT_S = 10.0
VIEWS = ("fleet", "job", "spares", "nodes")
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_ASSETS = {
    "/": "index.html",
    "/dashboard.css": "dashboard.css",
    "/dashboard.js": "dashboard.js",
    "/table.js": "table.js",
    "/goodput.js": "goodput.js",
    "/picture.js": "picture.js",
    "/phrases.js": "phrases.js",
    "/icon.svg": "icon.svg",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Characters of a namespace or a name in an address.
_NAME_LENGTH = 253

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Board:
    """The newest Fleet, and its pages."""

    #: A page with ages is computed again after this time.
    FRESH_S = 1.0

    def __init__(self) -> None:
        self.fleet = Fleet(is_complete=False)
        self.streams = 0
        self._pages: dict[PageAddress, tuple[float, Page]] = {}
        self._changed = asyncio.Event()

    def show(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._pages.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def page(self, address: PageAddress, now: float) -> Page:
        """Browsers with the same page share it."""
        made_at, found = self._pages.get(address, (-math.inf, {}))
        if not 0 <= now - made_at < self.FRESH_S:
            if len(self._pages) >= MOST_STREAMS:
                self._pages.clear()
            found = page(self.fleet, address, now)
            self._pages[address] = now, found
        return found

    async def wait(self, seen: Fleet, limit_s: float) -> None:
        """Until there is a newer Fleet, at most for this time."""
        if self.fleet is seen:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), limit_s)


def serve(
    fleets: Iterator[Fleet], address: str, port: int, hosts: Collection[str], report: Callable[[str], None]
) -> None:
    """Until SIGTERM. address: "" for all. hosts: names by which browsers may call it, beside localhost.

    report gets the URL. Raises WrongCall if the port is taken, and the error that ends `fleets`.
    """
    with _listen(address, port) as listening:
        asyncio.run(_serve(fleets, listening, hosts, report))


async def _serve(
    fleets: Iterator[Fleet], listening: socket.socket, hosts: Collection[str], report: Callable[[str], None]
) -> None:
    board = Board()
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    runner = web.AppRunner(application(board, hosts), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        host, port = listening.getsockname()[:2]
        report(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        ends = [asyncio.ensure_future(follow(board, fleets)), asyncio.ensure_future(terminated.wait())]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in done:
            end.result()
    finally:
        await runner.cleanup()


async def follow(board: Board, fleets: Iterator[Fleet]) -> None:
    """Show each Fleet, and the last one for ever. Raises the error of the iterator, which waits in its own thread."""
    loop = asyncio.get_running_loop()
    failure: asyncio.Future[None] = loop.create_future()

    def fail(error: BaseException) -> None:
        if not failure.done():
            failure.set_exception(error)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            try:
                for fleet in fleets:
                    loop.call_soon_threadsafe(board.show, fleet)
            except Exception as error:  # noqa: BLE001 (the loop raises it)
                loop.call_soon_threadsafe(fail, error)

    threading.Thread(target=run, daemon=True).start()
    await failure


def application(board: Board, hosts: Collection[str]) -> web.Application:
    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        check(request, hosts)
        return await handler(request)

    async def events(request: web.Request) -> web.StreamResponse:
        return await _stream(request, board)

    async def healthz(_: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)

    app = web.Application(middlewares=[checked], client_max_size=1024)
    app.on_response_prepare.append(add_headers)
    for path, name in _ASSETS.items():
        app.router.add_get(path, _asset(name))
    app.router.add_get("/events", events)
    app.router.add_get("/healthz", healthz)
    return app


def _asset(name: str) -> Handler:
    content = resources.files("understudy_cli.dashboard").joinpath("assets", name).read_bytes()
    kind = _TYPES[name.rpartition(".")[2]]

    async def send(_: web.Request) -> web.StreamResponse:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return send


# Checks ---------------------------------------------------------------------------------------------------------------


def check(request: web.Request, hosts: Collection[str]) -> None:
    """Raises HTTPForbidden."""
    host = request.headers.get("Host", "")
    if not is_own_host(host, hosts):
        raise web.HTTPForbidden(
            text=f"this dashboard is not {host[:100]!r}: open it by its address or as localhost, or add the name "
            "with --host (dashboard.hosts of the chart)"
        )
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        if request.headers.get("Sec-Fetch-Mode") == "navigate" and request.path == "/":
            return  # a link to the page
        raise web.HTTPForbidden(text="requests of other web sites are rejected")


def is_own_host(host: str, hosts: Collection[str]) -> bool:
    """Whether a browser that sends this header was not led here by another site's name."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    name = name.lower().rstrip(".")
    if name == "localhost" or name in (own.lower().rstrip(".") for own in hosts):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def address_of(query: Mapping[str, str]) -> PageAddress:
    """Raises HTTPBadRequest."""
    view, namespace, name = (query.get(key, "") for key in ("view", "namespace", "name"))
    if view not in VIEWS:
        raise web.HTTPBadRequest(text=f"view: expected one of {', '.join(VIEWS)}")
    if len(namespace) > _NAME_LENGTH or len(name) > _NAME_LENGTH:
        raise web.HTTPBadRequest(text=f"namespace, name: expected at most {_NAME_LENGTH} characters")
    return PageAddress(view, namespace, name)


# Streams --------------------------------------------------------------------------------------------------------------


async def _stream(request: web.Request, board: Board) -> web.StreamResponse:
    address = address_of(request.query)
    if board.streams >= MOST_STREAMS:
        raise web.HTTPServiceUnavailable(text=f"{MOST_STREAMS} browsers are connected already")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    board.streams += 1
    try:
        await response.prepare(request)
        await response.write(b"retry: 1000\n\n")
        async for message in messages(board, address):
            await response.write(message)
    except ConnectionResetError:
        pass  # the browser has gone
    finally:
        board.streams -= 1
    return response


async def messages(board: Board, address: PageAddress) -> AsyncIterator[bytes]:
    sent: Page = {}
    while True:
        seen, now = board.fleet, time.time()
        newest = board.page(address, now)
        parts = list(changes(sent, newest, MOST_ROWS))
        for part in parts:
            yield _encoded({"now": now, "set": part.set, "gone": part.gone})
        if not parts:
            yield b": \n\n"
        sent = newest
        await board.wait(seen, HEARTBEAT_S)


def _encoded(message: object) -> bytes:
    text = json.dumps(message, default=vars, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode("utf-8", "replace") + b"\n\n"


def _listen(address: str, port: int) -> socket.socket:
    """address: "" for all, of IPv4 and IPv6. Raises WrongCall."""
    try:
        if not address:
            dual = socket.has_dualstack_ipv6()
            return socket.create_server(
                ("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual
            )
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(target, family=family)
    except OSError as error:
        raise WrongCall(f"cannot listen on {address or 'all addresses'}, port {port}: {error.strerror}") from error

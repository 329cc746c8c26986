"""`python -m understudy_rollout.gateway --engine http://127.0.0.1:30000 --port 8080 --token-file FILE`.

Uses uvloop if it is installed, as in the sidecar's image: it is faster.
"""

import argparse
import asyncio
import gc
import importlib.util
import logging
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from understudy_rollout.gateway.app import GatewayApp
from understudy_rollout.gateway.bodies import MAX_BYTES
from understudy_rollout.gateway.connections import MAX_CONNECTIONS, OPTIONS
from understudy_rollout.gateway.flights import WAIT_LIMIT_S, InFlightRequests, Policy
from understudy_rollout.gateway.listener import address_of, listener_at
from understudy_rollout.gateway.proxy import Proxy
from understudy_rollout.gateway.weights_file import WeightsFile, open_weights_file
from understudy_rollout.weights import Weights, version_of


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m understudy_rollout.gateway",
        description="Passes requests to one inference server as long as all of its weights are of one version.",
    )
    parser.add_argument("--engine", required=True, metavar="URL", help="the inference server")
    parser.add_argument("--host", default="", help="address to listen on (all addresses)")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on (8080; 0: the kernel chooses)")
    parser.add_argument("--token-file", required=True, type=Path, help="file with the secret that trainers send")
    parser.add_argument(
        "--in-flight-requests",
        type=Policy,
        choices=list(Policy),
        default=Policy.ABORT,
        metavar="abort|wait",
        help="whether running requests are aborted when an update begins, or the update waits for them (abort)",
    )
    limit = f"seconds to wait with --in-flight-requests wait ({WAIT_LIMIT_S:g})"
    parser.add_argument("--wait-limit", type=float, default=WAIT_LIMIT_S, metavar="S", help=limit)
    kept_in = "file with the state of the weights, which a restarted gateway reads"
    parser.add_argument("--state-file", type=Path, metavar="FILE", help=kept_in)
    starts_with = "version of the weights that the server starts with; admits requests before the first update"
    parser.add_argument("--initial-version", default="", help=starts_with)
    parser.add_argument("--generation", action="append", default=[], metavar="PATH", help="one more path to admit")
    most = f"largest body of a client's request ({MAX_BYTES})"
    parser.add_argument("--most-body", type=int, default=MAX_BYTES, metavar="BYTES", help=most)
    most = f"most connections of clients; each may take 480 KiB of memory ({MAX_CONNECTIONS})"
    parser.add_argument("--most-connections", type=int, default=MAX_CONNECTIONS, metavar="N", help=most)
    chosen = parser.parse_args(arguments)
    for option in ("most_body", "most_connections"):
        if getattr(chosen, option) < 1:
            parser.error(f"--{option.replace('_', '-')}: expected 1 or more")
    if not 0 <= chosen.port <= 65535:
        parser.error(f"--port {chosen.port}: expected 0 to 65535")
    try:
        address_of(chosen.engine)
    except ValueError as error:
        parser.error(f"--engine {chosen.engine}: {error}")
    if chosen.initial_version and chosen.state_file is None:
        parser.error("--initial-version needs --state-file: else a restarted gateway assumes that version again")
    try:
        if chosen.initial_version:
            version_of(chosen.initial_version)
    except ValueError as error:
        parser.error(f"--initial-version: {error}")
    return chosen


def make_weights_file(chosen: argparse.Namespace) -> WeightsFile:
    if chosen.state_file is None:
        return WeightsFile(Weights())
    return open_weights_file(chosen.state_file, listener_at(address_of(chosen.engine)), chosen.initial_version)


async def serve(chosen: argparse.Namespace) -> None:
    flights = InFlightRequests(make_weights_file(chosen), chosen.in_flight_requests, chosen.wait_limit)
    token = chosen.token_file.read_text().strip()
    limits = (chosen.most_body, chosen.most_connections)
    app = GatewayApp(flights, Proxy(chosen.engine), token, chosen.generation, *limits)
    runner = web.AppRunner(app.application(), **OPTIONS)
    await runner.setup()
    assert runner.server is not None
    try:
        port = app.connections.listen(runner.server, chosen.host, chosen.port)
    except OSError:
        await runner.cleanup()
        raise
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    logging.info("listening on port %d for %s, on %s", port, chosen.engine, type(loop).__module__)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each client needs two
    gc.collect()
    gc.freeze()  # the collector skips imported objects from now on: each scan would delay requests by milliseconds
    await over.wait()
    app.connections.close()
    await runner.cleanup()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s gateway %(message)s", stream=sys.stderr)
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    loop = importlib.import_module("uvloop").new_event_loop() if has_uvloop else asyncio.new_event_loop()
    chosen = options(sys.argv[1:])
    try:
        loop.run_until_complete(serve(chosen))
    except (OSError, ValueError) as error:  # a file that cannot be read or written, or a port that is in use
        sys.exit(f"the gateway cannot start: {error}")
    finally:
        loop.close()


if __name__ == "__main__":
    main()

"""Runs a job on this machine, and asks an active run: the verbs of `understudy local`.

Exit codes: 0 if the job has succeeded, 1 if it has failed, 2 for a wrong command line, 130 after Ctrl-C.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import uvloop
from rich.console import Console

from understudy_launcher.package import write_package
from understudy_local import control, preflight, process_guard, run_folder, run_objects
from understudy_local.cluster import LocalCluster
from understudy_local.options import Options, UsageError
from understudy_local.output import LocalOutput, Plain
from understudy_local.run_folder import RunFolder
from understudy_local.view import LiveScreen
from understudy_protocol import pod as names

_NETWORKS = range(16, 250)


def run(options: Options) -> int:
    """Run a job to its end. Returns the exit code. Raises UsageError."""
    if not sys.platform.startswith("linux"):
        raise UsageError(f"local mode needs Linux, where all of 127.0.0.0/8 is loopback; this is {sys.platform}")
    if shutil.which(options.command[0]) is None:
        raise UsageError(f"command {options.command[0]!r} is not on PATH: use the command's path, or fix PATH")
    folder = run_folder.make(options.name)
    try:
        write_package(folder.shipped)
        cannot_start = preflight.refusal(options.command, folder.shipped / names.PYTHON_FOLDER, os.environ)
        if cannot_start:
            raise UsageError(cannot_start)
        return process_guard.guard(partial(_run_job, options, folder))
    finally:
        folder.clear()


def kill(target: str, name: str) -> str:
    """SIGKILL to the worker of a rank, or to all processes of a member. Returns a line about it. Raises UsageError."""
    folder = run_folder.active(name)
    return f"run {folder.name}: killed {control.ask(folder.control, {'kill': target})['killed']}"


def _run_job(options: Options, folder: RunFolder, keeper_alive: int) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, folder, keeper_alive))


async def _serve(options: Options, folder: RunFolder, keeper_alive: int) -> int:
    live = None if options.plain or not sys.stdout.isatty() else LiveScreen(Console())
    output = LocalOutput(live or Plain(), verbose=options.verbose)
    cluster = LocalCluster(options, folder, _free_network(), _devices(), output)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, cluster.end, number.name)
    process_guard.handle_signals()
    loop.add_reader(keeper_alive, partial(_abandon, cluster, keeper_alive))
    server = await control.serve(cluster, folder.control)
    size = f"{options.nodes} members of {options.nproc}, {options.spares} spares"
    output.note(f"run {folder.name}: {size}; logs: {folder.logs}")
    try:
        if live is not None:
            live.watch(cluster)
        with live or nullcontext():
            code = await cluster.run()
        folder.record_end(run_objects.described(cluster, has_ended=True))
        output.note(f"run {folder.name} ended with exit code {code}; logs: {folder.logs}")
        return code
    finally:
        loop.remove_reader(keeper_alive)
        server.close()
        output.close()


def _abandon(cluster: LocalCluster, keeper_alive: int) -> None:
    asyncio.get_running_loop().remove_reader(keeper_alive)  # it stays readable
    cluster.abandon()


def _free_network() -> str:
    """The first two numbers of addresses that no other run uses: the address of their directory is free."""
    for number in _NETWORKS:
        network = f"127.{(number + os.getpid()) % len(_NETWORKS) + _NETWORKS.start}"
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((f"{network}.0.1", names.COORDINATOR_PORT))
            except OSError:
                continue
            return network
    raise UsageError(f"port {names.COORDINATOR_PORT} is in use on all loopback addresses: stop the process that has it")


def _devices() -> tuple[str, ...]:
    """The GPUs that the user allows, by the names that CUDA gives them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name for name in chosen.split(",") if name)
    found = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*")]
    return tuple(sorted((name for name in found if name.isdigit()), key=int))

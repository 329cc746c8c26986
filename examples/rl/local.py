"""All of it on one machine: two rollout servers with their gateways, a trainer, and clients that check every answer.

    python examples/rl/local.py --updates 5 [--kill rollout|trainer|freeze --in-update 3]

Exits 1 if an answer had tokens of more than one version, or of none. The killed process dies in the transfer of that
update: from then on no server gets requests, because no further update succeeds. With freeze another trainer stops in
the transfer of its second update, and continues when this one has updated the servers: from then on no server gets
requests.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import aiohttp
from rollout import fill, model, token

HERE = Path(__file__).resolve().parent


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def processes(*commands: list[str]) -> Iterator[None]:
    running = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.communicate()


async def started(number: int, *command: str) -> asyncio.subprocess.Process:
    """Start the trainer of this round. Gateways use the round to refuse a trainer that was replaced."""
    env = os.environ | {"UNDERSTUDY_ROUND": f"1.1.{number}"}
    return await asyncio.create_subprocess_exec(*command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def pace(trainer: asyncio.subprocess.Process, seen: Counter[str]) -> None:
    """Print the trainer's lines, and let it begin the next update when clients have seen the weights of this one.

    Raises TimeoutError if no client gets an answer within a minute from an update that succeeded.
    """
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    async for line in trainer.stdout:
        print(line.decode(), end="", flush=True)
        match line.decode().split():
            case ["update", version, "whole", *_]:
                await until_answered(f"version {version}", seen)
            case ["update", _, "failed:", *_]:
                await asyncio.sleep(0.3)  # clients continue to ask, and no server may answer
            case _:
                continue
        with suppress(ConnectionError):  # it may have died
            trainer.stdin.write(b"\n")
            await trainer.stdin.drain()


async def until_answered(kind: str, seen: Counter[str]) -> None:
    for _ in range(600):
        if seen[kind]:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"no client gets an answer of {kind}: {dict(seen)}")


def is_stopped(process: asyncio.subprocess.Process) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].startswith("T")


async def until_stopped(process: asyncio.subprocess.Process) -> None:
    """Wait until the process is stopped. Raises TimeoutError after a minute."""
    for _ in range(600):
        if is_stopped(process):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the trainer does not stop in its update")


async def until_up(session: aiohttp.ClientSession, urls: list[str]) -> None:
    """Wait a minute at most: they import torch."""
    deadline = asyncio.get_running_loop().time() + 60
    for url in urls:
        while True:
            try:
                async with session.get(url + "/health") as response:
                    if response.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{url} does not come up")
            await asyncio.sleep(0.1)


async def ask(session: aiohttp.ClientSession, url: str, versions: dict[float, int], seen: Counter[str]) -> None:
    """Forever: check that each answer belongs to one version, the one in its header."""
    while True:
        try:
            async with session.post(url + "/generate", json={"tokens": 5}) as response:
                if response.status == 503:
                    seen["denied"] += 1
                    await asyncio.sleep(0.02)
                    continue
                tokens = (await response.json())["tokens"] if response.status == 200 else []
                version = response.headers.get("Understudy-Weight-Version", "")
        except aiohttp.ClientError:
            seen["broken off"] += 1
            continue
        met = {versions.get(value, -1) for value in tokens}
        if response.status != 200:
            seen[f"status {response.status}"] += 1
        elif met == {int(version)}:
            seen[f"version {version}"] += 1
        else:
            seen["MIXED"] += 1
            print(f"an answer of version {version} has tokens of {sorted(met)}: {tokens}", flush=True)


async def run(updates: int, kill: str, in_update: int) -> int:
    model_of_all, versions = model(), {}
    for version in range(updates + 1):
        fill(model_of_all, version)
        versions[token(model_of_all)] = version
    ports = free_ports(4)  # of one call: a second call could return ports of the first again
    engines, gateways = ports[:2], ports[2:]
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "token"
        secret.write_text(os.urandom(16).hex())
        python, at = sys.executable, "http://127.0.0.1:"
        servers = [[python, str(HERE / "rollout.py"), "--until-stdin-ends", "--port", str(port)] for port in engines]
        dying = ["--die-in-update", str(in_update)]
        servers[1] += dying if kill == "rollout" else []
        behind = [*("--host", "127.0.0.1", "--token-file", str(secret)), "--port"]
        gateway_commands = [
            [python, "-m", "understudy_rollout.gateway", "--engine", f"{at}{engine}", *behind, str(gateway)]
            for engine, gateway in zip(engines, gateways, strict=True)
        ]
        with processes(*servers, *gateway_commands):
            async with aiohttp.ClientSession() as session:
                asked = [f"{at}{port}" for port in gateways]
                await until_up(session, asked)
                seen: Counter[str] = Counter()
                asking = [asyncio.ensure_future(ask(session, url, versions, seen)) for url in asked * 3]
                train = [python, str(HERE / "trainer.py"), "--paced", "--token-file", str(secret), "--gateways", *asked]
                if kill == "freeze":
                    frozen = await started(1, *train, "--updates", "2", "--stop-in-update", "2")
                    pacing = asyncio.ensure_future(pace(frozen, seen))
                    await until_stopped(frozen)
                trainer = await started(2, *train, "--updates", str(updates), *(dying if kill == "trainer" else []))
                await pace(trainer, seen)
                code = await trainer.wait()
                if kill == "freeze":
                    frozen.send_signal(signal.SIGCONT)
                    await pacing
                    await frozen.wait()
                    await asyncio.sleep(1)  # clients continue to ask
                if kill == "trainer":
                    code = 0 if code else 1  # its death was requested
                    await asyncio.sleep(1)  # clients continue to ask
                for client in asking:
                    client.cancel()
                await asyncio.wait(asking)
    for what, number in sorted(seen.items()):
        print(f"answers, {what}: {number}")
    return 1 if code or seen["MIXED"] else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--kill", choices=["rollout", "trainer", "freeze"], default="")
    parser.add_argument("--in-update", type=int, default=2)
    options = parser.parse_args()
    sys.exit(asyncio.run(run(options.updates, options.kill, options.in_update)))

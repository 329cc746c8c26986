"""The questions to an active run: one JSON line each way, over a unix socket in the run's folder.

{"kill": "RANK or MEMBER"}   {"killed": TEXT, "at": time.monotonic() just before}
{"show": true}               {"members": [{"node", "role", "ranks", "state", "coordinates"}, …]}
{"objects": true}            the job and its pods, as run_objects.described has them
                             or {"error": WHY}
"""

import asyncio
import json
import os
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from understudy_local import run_objects
from understudy_local.cluster import LocalCluster, NoSuchTarget
from understudy_local.member_table import member_rows
from understudy_local.options import UsageError

LIMIT_S = 10.0
LINE_BYTES = 4096
#: 64 members have less than 200 KB. Each of up to 200 Recoveries has a traceback and 16 consequences: less than 10 KB.
ANSWER_BYTES = 4 << 20


async def serve(cluster: LocalCluster, path: Path) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), LIMIT_S)
            writer.write(json.dumps(_answer(cluster, line)).encode() + b"\n")
            await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # the caller has disconnected, or its line is too long
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, path, limit=LINE_BYTES)
    os.chmod(path, 0o600)
    return server


def _answer(cluster: LocalCluster, line: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        if "show" in asked:
            rows = member_rows(cluster.pods.values(), cluster.snapshot, cluster.options.nproc)
            return {"members": [asdict(row) for row in rows]}
        if "objects" in asked:
            return run_objects.described(cluster)
        target = str(asked["kill"])
    except (ValueError, KeyError, TypeError):
        return {"error": 'expected {"kill": "RANK or MEMBER"}, {"show": true} or {"objects": true}'}
    at = time.monotonic()
    try:
        return {"killed": cluster.kill(target), "at": at}
    except NoSuchTarget as error:
        return {"error": str(error)}


def ask(path: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Raises UsageError for an error in the answer, OSError if the run does not answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT_S)
        connection.connect(str(path))
        connection.sendall(json.dumps(question).encode() + b"\n")
        with connection.makefile("rb") as answers:
            answer: dict[str, Any] = json.loads(answers.readline(ANSWER_BYTES) or b'{"error": "the run has ended"}')
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    return answer

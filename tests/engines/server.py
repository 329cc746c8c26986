"""A real server as a child process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
UP_S, DOWN_S = 300.0, 60.0


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], imported: Sequence[Path], up: str, log: Path
) -> Iterator[str]:
    """Its URL. imported: further folders of modules. up: a path that it answers with 200 when it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ours = {
        "PYTHONPATH": os.pathsep.join(map(str, [*imported, CHECKOUT, CHECKOUT / "sidecar"])),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, **ours, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _until_up(url + up, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(DOWN_S)
        finally:
            _end_group(process.pid)


def _until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + UP_S
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the server does not come up:\n{log.read_text()[-6000:]}")


def _end_group(leader: int) -> None:
    """Its processes, which outlive a server that did not end by itself."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)

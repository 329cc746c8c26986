"""The program of the gateway: errors at its start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def start(*words: str) -> tuple[int, str]:
    """The exit code, and the last line on stderr."""
    ended = subprocess.run(
        [sys.executable, "-m", "understudy_rollout.gateway", *words],
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr.splitlines()[-1]


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text("secret")
    return str(path)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--engine", "127.0.0.1:30000"], "expected http://host:port of the server"),
        (["--engine", "http://127.0.0.1:99999"], "Port out of range 0-65535"),
        (["--engine", "http://127.0.0.1:1", "--port", "70000"], "--port 70000: expected 0 to 65535"),
    ],
)
def test_a_wrong_option_is_named(token: str, words: list[str], text: str) -> None:
    code, line = start(*words, "--token-file", token)
    assert code == 2
    assert text in line


def test_a_file_that_cannot_be_used_is_named(token: str, tmp_path: Path) -> None:
    engine, absent, empty = ["--engine", "http://127.0.0.1:1"], str(tmp_path / "absent"), tmp_path / "empty"
    empty.write_text("")
    missing = f"the gateway cannot start: [Errno 2] No such file or directory: '{absent}"
    assert start(*engine, "--token-file", absent) == (1, f"{missing}'")
    code, line = start(*engine, "--token-file", token, "--state-file", f"{absent}/state")
    assert (code, line.startswith(missing)) == (1, True)
    code, line = start(*engine, "--token-file", str(empty))
    assert (code, line) == (1, "the gateway cannot start: token: expected a secret that the trainer also has; got ''")


def test_a_port_in_use_is_named(token: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = ["--engine", "http://127.0.0.1:1", "--token-file", token, "--host", "127.0.0.1", "--port", str(port)]
        code, line = start(*words)
    assert code == 1
    assert line.startswith("the gateway cannot start: [Errno 98] Address already in use")

"""Which Python torch is installed for, on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import torch_install
from tests.cluster.failures import MissingTool


@pytest.fixture(autouse=True)
def _ask_again() -> Iterator[None]:
    torch_install.torch_python.cache_clear()
    yield
    torch_install.torch_python.cache_clear()


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_of_the_right_version_with_pip_is_taken_without_starting_a_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given this process runs such a Python, and a machine so busy that every program takes too long
    monkeypatch.setattr(torch_install, "PYTHON", f"{sys.version_info.major}.{sys.version_info.minor}")
    monkeypatch.setattr(torch_install, "PROBE_LIMIT_S", 0)
    # then that is the Python
    assert torch_install.torch_python() == sys.executable


def test_a_script_on_path_is_replaced_with_the_python_that_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given this process runs another version, and python9.9 is a script that starts a Python elsewhere
    monkeypatch.setattr(torch_install, "PYTHON", "9.9")
    program(tmp_path / "python9.9", f'PATH=/elsewhere:$PATH exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    # then the Python is that one
    assert torch_install.torch_python() == sys.executable


def test_the_error_says_what_each_candidate_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given the only candidate has no pip
    monkeypatch.setattr(torch_install, "PYTHON", "9.9")
    program(tmp_path / "python9.9", 'echo "No module named pip" >&2; exit 1')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    # then the error says what to install and what the candidate said
    with pytest.raises(MissingTool, match=r"apt-get install --yes python9\.9[^\n]*\n.*\n *No module named pip"):
        torch_install.torch_python()
